"""One dump to its digest: per group the calls in order, what is pending, who was sent to.

Runs once over the entries and keeps nothing of them. A digest is made of tuples, lists, strings
and numbers, so that it can cross to another process as it is.
"""

import re
from array import array
from collections import deque
from typing import Any, TypedDict

from harness.collectives import same_input
from harness.flightrecord.untrusted import Unreadable

PROGRAM = 512
"""Calls of the recent program that are kept."""

_P2P = re.compile(r"(send|recv)\D*(\d+)\s*(?:->|<-)\s*(\d+)")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/torch/|^<|^\?\?")

Where = tuple[str, int, str]


class Digest(TypedDict):
    version: str
    gloo: bool
    whole: bool
    cut: bool
    groups: list[tuple[str, str, str]]
    """Name, role, and the list of its ranks as the dump writes it, empty where it does not."""
    calls: list[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]]
    """Operation, input sizes, input dtypes. The indices below count from 1; 0 is a gap."""
    tracks: list[tuple[int, int, bytes, int, int]]
    """Group, first sequence number, indices of the calls (array "I"), enqueued, completed."""
    pending: list[tuple[int, int, int, int, int, bool, int, Where | None]]
    """Group, seq, call, created ns, peer within the group or -1, is a send, batch, user's line."""
    posted: list[tuple[int, int, bool, int]]
    """Group, peer within the group, is a send, how many; only with a whole record."""
    program: list[tuple[int, int]]
    last_where: Where | None
    newest_ns: int
    """When the last call was made."""
    skipped: int
    """Entries that make no sense."""


class _Group:
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
        self.open: list[tuple[int, int, int, int]] = []  # record, seq, call, position in entries
        self.p2p: list[tuple[int, int, int, int, int, bool]] = []  # ..., peer, is a send
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
        self.table: list[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]] = []
        self._at: dict[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]], int] = {}
        self._merged: dict[tuple[int, int], int] = {}

    def number(self, name: str, sizes: Any, dtypes: Any) -> int:
        op = name.rpartition(":")[2]
        if op.startswith(("send ", "recv ")):
            op = op[:4]  # the peer is told elsewhere
        same = same_input(name)
        shapes = tuple(tuple(int(n) for n in shape) for shape in sizes or ()) if same else ()
        kinds = tuple(str(kind) for kind in dtypes or ()) if same else ()
        return self._add((op, shapes, kinds))

    def _add(self, call: tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]) -> int:
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
    try:
        return _digest(dump)
    except RecursionError:
        raise Unreadable("refused: it is nested too deeply") from None


def _digest(dump: dict[str, Any]) -> Digest:
    entries: list[Any] = dump.get("entries") or []
    scan = _Scan(dump)
    skipped = scan.run(entries)
    if skipped and skipped == len(entries):
        raise Unreadable("none of its entries has the fields of a flight record")
    records = [record for record in (_record(entries, 0), _record(entries, -1)) if record >= 0]
    whole = bool(records) and records[0] == 0 and records[-1] == len(entries) - 1
    only_active = scan.only_active() and not whole
    scan.from_status(dump, only_active=only_active)
    pending = scan.pending_rows(entries)
    return Digest(
        version=str(dump["version"]),
        gloo=scan.gloo,
        whole=whole or (not entries and not scan.status_seen),
        cut=scan.first_open == 0 and not whole,
        groups=scan.group_rows(),
        calls=scan.calls.table,
        tracks=scan.track_rows(),
        pending=pending,
        posted=[(*key, count) for key, count in scan.posted.items()] if whole else [],
        program=list(scan.program),
        last_where=_where(entries[-1]) if entries else None,
        newest_ns=_ns(entries[-1]) if entries else 0,
        skipped=skipped,
    )


class _Scan:
    """One pass over the entries of a dump."""

    def __init__(self, dump: dict[str, Any]) -> None:
        self.calls = _Calls()
        self.keys: dict[tuple[str, str], int] = {}
        self.groups: list[_Group] = []
        self.posted: dict[tuple[int, int, bool], int] = {}
        self.program: deque[tuple[int, int]] = deque(maxlen=PROGRAM)
        self.config = _config(dump)
        self.local_ids: dict[str, int] = {}  # process-local pg_id -> group
        self.gloo = False
        self.status_seen = False
        self.first_open = -1  # position of the first pending entry

    def group(self, name: str, desc: str) -> int:
        at = self.keys.get((name, desc))
        if at is None:
            at = self.keys[name, desc] = len(self.groups)
            self.groups.append(_Group())
        return at

    def run(self, entries: list[Any]) -> int:
        """Take all entries in; returns how many make no sense."""
        numbers: dict[Any, int] = {}
        by_name: dict[Any, int] = {}
        groups, program = self.groups, self.program
        skipped = 0
        for at, entry in enumerate(entries):
            try:
                name = entry["profiling_name"]
                sizes = entry["input_sizes"]
                dtypes = entry["input_dtypes"]
                if len(sizes) == 1 == len(dtypes):
                    key = (name, dtypes[0], *sizes[0])
                else:
                    key = (name, str(sizes), str(dtypes))
                call = numbers.get(key)
                if call is None:
                    call = numbers[key] = self.calls.number(name, sizes, dtypes)
                process_group = entry["process_group"]
                if type(process_group) is list:
                    process_group = tuple(process_group)
                where = by_name.get(process_group)
                if where is None:
                    where = by_name[process_group] = self.new_group(entry, process_group)
                # Nearly all entries: a collective like the one before it, and done.
                group = groups[where]
                if (
                    entry["state"] == "completed"
                    and entry["collective_seq_id"] == group.enqueued + 1
                    and group.ids
                    and not entry.get("is_p2p")
                    and not group.open
                ):
                    group.ids.append(call)
                    group.enqueued = group.completed = group.enqueued + 1
                    program.append((where, call))
                else:
                    self.take(at, entry, name, where, call)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                skipped += 1
        return skipped

    def new_group(self, entry: dict[str, Any], process_group: Any) -> int:
        name, desc = process_group
        where = self.group(str(name), str(desc))
        if "pg_id" in entry:
            self.local_ids.setdefault(str(entry["pg_id"]), where)
        return where

    def take(self, at: int, entry: dict[str, Any], name: str, where: int, call: int) -> None:
        group = self.groups[where]
        gloo = name.startswith("gloo:")
        if gloo:
            self.gloo = True
            done = entry["retired"]
        else:
            done = entry["state"] == "completed" or bool(entry.get("time_discovered_completed_ns"))
        record = entry["record_id"]
        if entry.get("is_p2p") or (name.startswith(("nccl:send", "nccl:recv"))):
            self.point_to_point(at, entry, name, where, call, done)
            return
        seq = entry["collective_seq_id"]
        if done:
            group.done = True
        group.put(seq, call, self.calls.merge)
        group.enqueued = max(group.enqueued, seq)
        self.program.append((where, call))
        if not done:
            if not (group.open and group.open[-1][1] == seq):
                group.open.append((record, seq, call, at))
        elif gloo:
            group.completed = max(group.completed, seq)
        else:
            # Collectives of a group finish in order; some are never marked, those of a coalesced
            # block for example: what comes after them tells.
            group.open.clear()
            group.completed = seq

    def point_to_point(
        self, at: int, entry: dict[str, Any], name: str, where: int, call: int, done: bool
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
        key = (where, peer, send)
        self.posted[key] = self.posted.get(key, 0) + 1
        self.program.append((where, call))
        if not done:
            group.p2p.append((entry["record_id"], seq, call, at, peer, send))

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

    def pending_rows(
        self, entries: list[Any]
    ) -> list[tuple[int, int, int, int, int, bool, int, Where | None]]:
        rows = []
        for where, group in enumerate(self.groups):
            for record, seq, call, at in group.open:
                rows.append((record, where, seq, call, at, -1, False, -1))
            counts: dict[int, int] = {}
            for _, seq, *_ in group.p2p:
                counts[seq] = counts.get(seq, 0) + 1
            for record, seq, call, at, peer, send in group.p2p:
                batch = seq if counts[seq] > 1 or seq in group.batches else -1
                if self._batch_done(group, record, seq, batch):
                    continue
                rows.append((record, where, seq, call, at, peer, send, batch))
        rows.sort()
        head = self.first_open = rows[0][4] if rows else -1
        return [
            (where, seq, call, _ns(entries[at]), peer, send, batch,
             _where(entries[at]) if at == head else None)
            for _, where, seq, call, at, peer, send, batch in rows
        ]  # fmt: skip

    def _batch_done(self, group: _Group, record: int, seq: int, batch: int) -> bool:
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


def _record(entries: list[Any], at: int) -> int:
    try:
        return int(entries[at]["record_id"])
    except (IndexError, KeyError, TypeError, ValueError):
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
