"""One pass over the entries of a dump, of which only the digest is kept."""

import re
from array import array
from collections import deque
from operator import itemgetter
from typing import Any

from harness.collectives import same_input
from harness.flightrecord.digest import Digest, Where
from harness.flightrecord.untrusted import Unreadable

PROGRAM = 512
"""Calls of the recent program that are kept."""

_P2P = re.compile(r"(send|recv)\D*(\d+)\s*(?:->|<-)\s*(\d+)")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/torch/|^<|^\?\?")

CallRow = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


class Group:
    """The collectives of one group, as the entries go by."""

    __slots__ = (
        "batches", "completed", "done", "enqueued", "first", "ids", "marked", "open", "p2p",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = -1
        self.ids = array("I")
        self.enqueued = -1
        self.completed = -1
        self.done = False  # something of it is
        self.open: list[tuple[int, int, int, int, Any]] = []  # record, seq, call, position, entry
        self.p2p: list[tuple[int, int, int, int, Any, int, bool]] = []  # ..., peer, is a send
        self.batches: dict[int, bool] = {}  # p2p seq of a coalesced batch -> whether it is open
        self.marked = -1  # record of the last batch's marker

    def put(self, seq: int, call: int, merge: Any) -> None:
        """Note that `call` is what the rank called at `seq`."""
        last = self.first + len(self.ids) - 1
        if self.first < 0:
            self.first = seq
        elif seq == last:
            self.ids[-1] = merge(self.ids[-1], call)
            return
        elif seq < last:
            return
        elif seq > last + 1:
            if seq - last > 1 << 16:  # a gap this long: what came before says nothing about now
                self.first, self.ids = seq, array("I")
            else:
                self.ids.extend([0] * (seq - last - 1))
        self.ids.append(call)


class _Calls:
    """Numbers of the calls seen so far."""

    def __init__(self) -> None:
        self.table: list[CallRow] = []
        self._at: dict[CallRow, int] = {}
        self._merged: dict[tuple[int, int], int] = {}

    def number(self, name: str, sizes: Any, dtypes: Any) -> int:
        op = name.rpartition(":")[2]
        if op.startswith(("send ", "recv ")):
            op = op[:4]  # the peer is told elsewhere
        same = same_input(name)
        shapes = tuple(tuple(int(n) for n in shape) for shape in sizes or ()) if same else ()
        kinds = tuple(str(kind) for kind in dtypes or ()) if same else ()
        return self._add((op, shapes, kinds))

    def _add(self, call: CallRow) -> int:
        at = self._at.get(call)
        if at is None:
            self.table.append(call)
            at = self._at[call] = len(self.table)
        return at

    def merge(self, first: int, second: int) -> int:
        """One call of two that share a place: parts of a coalesced operation."""
        if first == 0 or second == 0:
            return first or second
        if (first, second) not in self._merged:
            (op, sizes, dtypes), (other, more, kinds) = (
                self.table[first - 1],
                self.table[second - 1],
            )
            if other == "coalesced" or op == "coalesced":
                self._merged[first, second] = second if op == "coalesced" else first
            else:
                ops = op if op.rpartition("+")[2] == other else f"{op}+{other}"
                self._merged[first, second] = self._add((ops, sizes + more, dtypes + kinds))
        return self._merged[first, second]


def digest(dump: dict[str, Any]) -> Digest:
    """The digest of a dump as `untrusted.parse` returns it. Raises Unreadable."""
    scan = Scan()
    entries: list[Any] = dump.get("entries") or []
    try:
        for entry in entries:
            scan.entry(entry)
    except RecursionError:
        raise Unreadable("refused: it is nested too deeply") from None
    return scan.digest(dump)


class Scan:
    """One pass over the entries of a dump."""

    def __init__(self) -> None:
        self.calls = _Calls()
        self.keys: dict[tuple[str, str], int] = {}
        self.groups: list[Group] = []
        self.posted: dict[tuple[int, int, bool], int] = {}
        self.program: deque[tuple[int, int]] = deque(maxlen=PROGRAM)
        self.config: dict[str, tuple[str, str]] = {}
        self.local_ids: dict[str, int] = {}  # process-local pg_id -> group
        self.gloo = False
        self.status_seen = False
        self.count = 0
        self.skipped = 0
        self.first_record = -1
        self.first_open = -1  # position of the first pending entry
        self.last: Any = None
        """The last entry, when it was given as a whole."""
        self._numbers: dict[Any, int] = {}
        self._by_name: dict[Any, int] = {}

    def group(self, name: str, desc: str) -> int:
        at = self.keys.get((name, desc))
        if at is None:
            at = self.keys[name, desc] = len(self.groups)
            self.groups.append(Group())
        return at

    def entry(self, entry: Any) -> None:
        """Take one entry in; one that makes no sense is counted."""
        self.last = entry
        try:
            name = entry["profiling_name"]
            call = self.number(name, entry["input_sizes"], entry["input_dtypes"])
            process_group = entry["process_group"]
            if type(process_group) is list:
                process_group = tuple(process_group)
            where = self._by_name.get(process_group)
            if where is None:
                where = self._by_name[process_group] = self.new_group(entry, process_group)
            # Nearly all entries: a collective right after the one before it, and done.
            if not (
                entry["state"] == "completed"
                and not entry.get("is_p2p")
                and self.finished(where, call, entry["collective_seq_id"])
            ):
                self.take(entry, name, where, call)
                self.count += 1
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            self.skipped += 1
            self.count += 1
        if self.count == 1:
            self.first_record = _record(entry)

    def number(self, name: str, sizes: Any, dtypes: Any) -> int:
        """Number of the call."""
        if len(sizes) == 1 == len(dtypes):
            key = (name, dtypes[0], *sizes[0])
        else:
            key = (name, str(sizes), str(dtypes))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.calls.number(name, sizes, dtypes)
        return number

    def known(self, process_group: tuple[Any, ...]) -> int:
        """Number of a group that has been seen; -1 for another."""
        return self._by_name.get(process_group, -1)

    def finished(self, where: int, call: int, seq: int) -> bool:
        """Take in a finished collective that directly follows another of its group; False when
        it does not, and nothing is taken."""
        group = self.groups[where]
        if seq != group.enqueued + 1 or not group.ids or group.open:
            return False
        group.ids.append(call)
        group.enqueued = seq
        group.done = True
        self.program.append((where, call))
        self.count += 1
        return True

    def sent_or_received(self, where: int, call: int, name: str) -> bool:
        """Take in a finished point-to-point operation, but for `count`; False for a marker, which
        is not taken."""
        found = _P2P.search(name)
        if found is None:
            return False
        self.groups[where].done = True
        self._post(where, call, int(found[3]), found[1] == "send")
        return True

    def _post(self, where: int, call: int, peer: int, send: bool) -> None:
        key = (where, peer, send)
        self.posted[key] = self.posted.get(key, 0) + 1
        self.program.append((where, call))

    def digest(self, dump: dict[str, Any]) -> Digest:
        """What was taken in, with what the rest of `dump` says. Raises Unreadable."""
        if self.skipped and self.skipped == self.count:
            raise Unreadable("none of its entries has the fields of a flight record")
        self.config = _config(dump)
        whole = self.count > 0 and self.first_record == 0 and _record(self.last) == self.count - 1
        self.from_status(dump, only_active=self.only_active() and not whole)
        pending = self.pending_rows()
        return Digest(
            version=str(dump["version"]),
            gloo=self.gloo,
            whole=whole or (not self.count and not self.status_seen),
            cut=self.first_open == 0 and not whole,
            groups=self.group_rows(),
            calls=self.calls.table,
            tracks=self.track_rows(),
            pending=pending,
            posted=[(*key, count) for key, count in self.posted.items()] if whole else [],
            program=list(self.program),
            last_where=_where(self.last),
            newest_ns=_ns(self.last),
            skipped=self.skipped,
        )

    def new_group(self, entry: dict[str, Any], process_group: Any) -> int:
        name, desc = process_group
        where = self.group(str(name), str(desc))
        if "pg_id" in entry:
            self.local_ids.setdefault(str(entry["pg_id"]), where)
        return where

    def take(self, entry: dict[str, Any], name: str, where: int, call: int) -> None:
        group = self.groups[where]
        gloo = name.startswith("gloo:")
        if gloo:
            self.gloo = True
            done = entry["retired"]
        else:
            done = entry["state"] == "completed" or bool(entry.get("time_discovered_completed_ns"))
        record = entry["record_id"]
        if entry.get("is_p2p") or (name.startswith(("nccl:send", "nccl:recv"))):
            self.point_to_point(entry, name, where, call, done)
            return
        seq = entry["collective_seq_id"]
        if done:
            group.done = True
        group.put(seq, call, self.calls.merge)
        group.enqueued = max(group.enqueued, seq)
        self.program.append((where, call))
        if not done:
            if not (group.open and group.open[-1][1] == seq):
                group.open.append((record, seq, call, self.count, entry))
        elif gloo:
            group.completed = max(group.completed, seq)
        else:
            # Collectives of a group finish in order; some are never marked, those of a coalesced
            # block for example: what comes after them tells.
            group.open.clear()
            group.completed = seq

    def point_to_point(
        self, entry: dict[str, Any], name: str, where: int, call: int, done: bool
    ) -> None:
        group = self.groups[where]
        seq = entry.get("p2p_seq_id") or 0
        if done:
            group.done = True
        if name.endswith("coalesced"):
            group.batches[seq] = not done
            group.marked = entry["record_id"]
            return
        found = _P2P.search(name)
        if found is None:
            return
        peer, send = int(found[3]), found[1] == "send"
        self._post(where, call, peer, send)
        if not done:
            group.p2p.append((entry["record_id"], seq, call, self.count, entry, peer, send))

    def from_status(self, dump: dict[str, Any], *, only_active: bool) -> None:
        """What `pg_status` adds: how far groups are whose entries the dump leaves out.

        It is keyed by a process-local number. Numbers and names of groups grow together, so the
        sorted ones belong to each other, which must hold wherever entries show both.
        """
        status = dump.get("pg_status")
        if self.gloo or not isinstance(status, dict) or not status:
            return
        self.status_seen = True
        for local, where in self._local_groups(status).items():
            group, told = self.groups[where], status[local]
            if group.p2p or not isinstance(told, dict):
                continue
            try:
                enqueued = int(told["last_enqueued_collective"])
                completed = int(told["last_completed_collective"])
            except (KeyError, TypeError, ValueError):
                continue
            if only_active or not group.ids:
                group.enqueued = max(group.enqueued, enqueued)
                group.completed = max(group.completed, completed)

    def _local_groups(self, status: dict[Any, Any]) -> dict[Any, int]:
        seen = {
            local: self.local_ids[str(local)] for local in status if str(local) in self.local_ids
        }
        try:
            locals_ = sorted(status, key=int)
            names = sorted(self.config, key=int)
        except (TypeError, ValueError):
            return seen
        if len(locals_) != len(names):
            return seen
        pairs = {
            local: self.group(name, self.config[name][0])
            for local, name in zip(locals_, names, strict=True)
        }
        return pairs if all(pairs[local] == where for local, where in seen.items()) else seen

    def group_rows(self) -> list[tuple[str, str, str]]:
        for name, (desc, _) in self.config.items():
            self.group(name, desc)
        return [
            (name, desc, self.config[name][1] if name in self.config else "")
            for name, desc in self.keys
        ]

    def track_rows(self) -> list[tuple[int, int, bytes, int, int]]:
        rows = []
        for where, group in enumerate(self.groups):
            if group.open:
                completed = group.open[0][1] - 1
            else:
                completed = max(group.completed, group.enqueued if group.ids else -1)
            if group.ids or group.enqueued >= 0:
                first = max(group.first, 0)
                rows.append((where, first, group.ids.tobytes(), group.enqueued, completed))
        return rows

    def pending_rows(self) -> list[tuple[int, int, int, int, int, bool, int, Where | None]]:
        rows: list[tuple[Any, ...]] = []
        for where, group in enumerate(self.groups):
            for record, seq, call, at, entry in group.open:
                rows.append((record, where, seq, call, at, entry, -1, False, -1))
            counts: dict[int, int] = {}
            for _, seq, *_ in group.p2p:
                counts[seq] = counts.get(seq, 0) + 1
            for record, seq, call, at, entry, peer, send in group.p2p:
                batch = seq if counts[seq] > 1 or seq in group.batches else -1
                if not self._batch_done(group, record, seq, batch):
                    rows.append((record, where, seq, call, at, entry, peer, send, batch))
        rows.sort(key=itemgetter(0))
        head = self.first_open = rows[0][4] if rows else -1
        return [
            (where, seq, call, _ns(entry), peer, send, batch, _where(entry) if at == head else None)
            for _, where, seq, call, at, entry, peer, send, batch in rows
        ]

    def _batch_done(self, group: Group, record: int, seq: int, batch: int) -> bool:
        """Members of a batch are never marked as done; the marker behind them is. A marker that
        is not there any more has been left out because it was done."""
        if seq in group.batches:
            return not group.batches[seq]
        return record < group.marked or (batch >= 0 and self.only_active())

    def only_active(self) -> bool:
        """Whether nothing on record is done: what is may have been left out."""
        return not any(group.done for group in self.groups)


def _config(dump: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Group name to role and ranks. Gloo writes one entry without a name, which says nothing."""
    found: dict[str, tuple[str, str]] = {}
    config = dump.get("pg_config")
    for name, told in config.items() if isinstance(config, dict) else ():
        if name == "" or not isinstance(told, dict):
            continue
        ranks = told.get("ranks", "")
        found[str(name)] = (
            str(told.get("desc", "")),
            ranks if isinstance(ranks, str) else str(ranks),
        )
    return found


def _record(entry: Any) -> int:
    try:
        return int(entry["record_id"])
    except (KeyError, TypeError, ValueError):
        return -1


def _ns(entry: Any) -> int:
    created = entry.get("time_created_ns") if isinstance(entry, dict) else 0
    return created if isinstance(created, int) else 0


def _where(entry: Any) -> Where | None:
    """The user's line: the first frame outside of libraries."""
    try:
        frames = entry.get("frames") or ()
        for frame in frames:
            if not _LIBRARY.search(frame["filename"]):
                return str(frame["filename"]), int(frame["line"]), str(frame["name"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None
