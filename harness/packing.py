"""Evidence of the ranks of one node as one line: what they have in common is written once.

    {"node_rank": 5, "stacks": [...], "records": [...], "groups": [...], "messages": [...],
     "hosts": [...], "lines": [...],
     "ranks": [{"taken": {...}, "stack": 0, "record": 0, "groups": [...], "apart_ns": [...],
                "made": [...], "places": [...], "made_apart_ns": [...], "made_took_ns": [...],
                "exchanged": 0, "message_groups": [...], ...,
                "peers": [[...], ...], "flows": [...], "lines": [...]}, ...]}

`stacks` are the frames of an EvidenceTaken and what follows from them, `records` the columns of its
flight record (`harness.columns`), `messages` those of its messages; each rank has its place in
each, and beside it the names of its process groups there and the nanoseconds since the entry
before. `groups` are process groups, their members as runs; `made` are the places of those that the
rank has made, and `places` its own in them. `flows` are the connections of its traffic in numbers,
which name addresses by their place in `hosts`; a rank's `lines` are the places of its last lines. A
journal of thousands of ranks is read in a tenth of the time: what many nodes have is decoded once.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from harness.collectives import Collective, GroupCreation, PointToPoint
from harness.columns import Columns, Kind, MessageColumns, MessageKind
from harness.observations import EvidenceOfNode, EvidenceTaken
from harness.packedgroups import MOST_MEMBERS
from harness.sightings import Flow
from harness.topology import MOST_RANKS, Runs, runs_of
from harness.unpacking import FARTHEST, are_times, near

_encode = msgspec.json.encode


class _Table:
    """What ranks have in common, each once, as it stands in the line."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}

    def place(self, thing: Any) -> int:
        return self._places.setdefault(_encode(thing), len(self._places))

    def raw(self) -> list[msgspec.Raw]:
        return list(map(msgspec.Raw, self._places))


class _Packer:
    def __init__(self) -> None:
        self.stacks, self.records, self.groups, self.messages = (_Table() for _ in range(4))
        self.hosts: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self._runs: dict[int, tuple[tuple[int, ...], Runs]] = {}
        """By identity of the ranks, which are kept for that: ranks of one node have one object for
        the world."""
        self._members = 0

    def rank(self, taken: EvidenceTaken) -> dict[str, Any]:
        # A field that is not there is slower to decode than one that is empty.
        one: dict[str, Any] = {}
        alone: dict[str, Any] = {}
        if taken.frames:
            alone |= {"frames": (), "frames_by": "", "user_frame": None, "branches": ()}
            one["stack"] = self.stacks.place(_stack(taken))
        for name, pack in (
            ("collectives", self._recorded),
            ("groups", self._made),
            ("p2p", self._exchanged),
        ):
            packed = pack(taken) if getattr(taken, name) else None
            if packed is not None:
                alone[name] = ()
                one |= packed
        if taken.traffic is not None and taken.traffic.flows:
            alone["traffic"] = replace(taken.traffic, flows=())
            one |= self._flows(taken.traffic.flows)
        if taken.last_lines:
            alone["last_lines"] = ()
            lines = self.lines
            one["lines"] = [lines.setdefault(line, len(lines)) for line in taken.last_lines]
        return {"taken": replace(taken, **alone), **one}

    def _recorded(self, taken: EvidenceTaken) -> dict[str, Any] | None:
        columns, names, apart_ns = _in_columns(taken.collectives)
        if not are_times(apart_ns):
            return None
        return {"record": self.records.place(columns), "groups": names, "apart_ns": apart_ns}

    def _exchanged(self, taken: EvidenceTaken) -> dict[str, Any] | None:
        columns, names = _messages_in_columns(taken)
        apart_ns, took_ns = _times(taken.p2p)
        if not _in_order(apart_ns, took_ns) or not near((taken.rank, *columns.ends)):
            return None
        return {
            "exchanged": self.messages.place(columns),
            "message_groups": names,
            "message_apart_ns": apart_ns,
            "message_took_ns": took_ns,
        }

    def _flows(self, flows: Sequence[Flow]) -> dict[str, Any]:
        numbers: list[int] = []
        for flow in flows:
            numbers += (self._host(flow.local), self._host(flow.remote), flow.connections)
            numbers += (flow.sent_bytes, flow.received_bytes, flow.total_bytes)
            numbers += (flow.pending_bytes, flow.tries, int(flow.unanswered))
        return {"peers": [flow.peers for flow in flows], "flows": numbers}

    def _host(self, address: str) -> int:
        return self.hosts.setdefault(address, len(self.hosts))

    def _made(self, taken: EvidenceTaken) -> dict[str, Any] | None:
        apart_ns, took_ns = _times(taken.groups)
        runs = [self._runs_of(made.ranks) for made in taken.groups]
        if None in runs or not _in_order(apart_ns, took_ns):
            return None
        return {
            "made": [
                self.groups.place(
                    {"pg": made.pg, "pg_desc": made.pg_desc, "ranks": of, "member": made.member,
                     "failed": made.failed}
                )
                for made, of in zip(taken.groups, runs, strict=True)
            ],
            "places": [made.place for made in taken.groups],
            "made_apart_ns": apart_ns,
            "made_took_ns": took_ns,
        }  # fmt: skip

    def _runs_of(self, ranks: tuple[int, ...]) -> Runs | None:
        """None where no run has such ranks."""
        if id(ranks) not in self._runs:
            self._members += len(ranks)
            if self._members > MOST_MEMBERS or (
                ranks and not 0 <= min(ranks) <= max(ranks) < MOST_RANKS >= len(ranks)
            ):
                return None
            self._runs[id(ranks)] = ranks, runs_of(ranks)
        return self._runs[id(ranks)][1]


def packed(event: EvidenceOfNode) -> dict[str, Any]:
    """What stands in the line for `event`."""
    packer = _Packer()
    ranks = [packer.rank(taken) for taken in event.taken]
    return {
        "node_rank": event.node_rank,
        "stacks": packer.stacks.raw(),
        "records": packer.records.raw(),
        "groups": packer.groups.raw(),
        "messages": packer.messages.raw(),
        "hosts": list(packer.hosts),
        "lines": list(packer.lines),
        "ranks": ranks,
    }


def _stack(taken: EvidenceTaken) -> dict[str, Any]:
    """Its frames, each file once, and what goes with them."""
    files: dict[str, int] = {}
    frames = [
        (files.setdefault(frame.file, len(files)), frame.line, frame.function)
        for frame in taken.frames
    ]
    return {
        "files": list(files),
        "frames": frames,
        "frames_by": taken.frames_by,
        "user_frame": taken.user_frame,
        "branches": taken.branches,
    }


def _in_columns(
    entries: Sequence[Collective],
) -> tuple[Columns, tuple[str, ...], tuple[int, ...]]:
    """What others may have alike, names of the groups, and times apart."""
    groups: dict[tuple[str, str], int] = {}
    kinds: dict[Kind, int] = {}
    places, numbers = [], []
    for entry in entries:
        places.append(groups.setdefault((entry.pg, entry.pg_desc), len(groups)))
        kind = Kind(
            op=entry.op, sizes=entry.sizes, dtypes=entry.dtypes, state=entry.state,
            retired=entry.retired, site=entry.site, terms=entry.terms,
        )  # fmt: skip
        numbers.append(kinds.setdefault(kind, len(kinds)))
    columns = Columns(
        records=tuple(entry.record_id for entry in entries),
        seqs=tuple(entry.seq_id for entry in entries),
        groups=tuple(places),
        kinds=tuple(numbers),
        descs=tuple(desc for _, desc in groups),
        of=tuple(kinds),
    )
    apart_ns = _apart([entry.created_ns for entry in entries])
    return columns, tuple(name for name, _ in groups), apart_ns


def _messages_in_columns(taken: EvidenceTaken) -> tuple[MessageColumns, tuple[str, ...]]:
    """The same of its messages."""
    groups: dict[tuple[str, str], int] = {}
    kinds: dict[MessageKind, int] = {}
    places, numbers = [], []
    for op in taken.p2p:
        places.append(groups.setdefault((op.pg, op.pg_desc), len(groups)))
        kind = MessageKind(
            direction=op.direction, tag=op.tag, sizes=op.sizes, dtype=op.dtype, state=op.state
        )
        numbers.append(kinds.setdefault(kind, len(kinds)))
    columns = MessageColumns(
        numbers=tuple(op.number for op in taken.p2p),
        ends=tuple(op.peer - taken.rank for op in taken.p2p),
        groups=tuple(places),
        kinds=tuple(numbers),
        descs=tuple(desc for _, desc in groups),
        of=tuple(kinds),
    )
    return columns, tuple(name for name, _ in groups)


def _apart(times_ns: Sequence[int]) -> tuple[int, ...]:
    return tuple(later - earlier for earlier, later in pairwise([0, *times_ns]))


def _times(
    entries: Sequence[PointToPoint] | Sequence[GroupCreation],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nanoseconds since the entry before, and how long it took."""
    apart_ns = _apart([entry.begun_ns for entry in entries])
    return apart_ns, tuple(entry.ended_ns - entry.begun_ns for entry in entries)


def _in_order(apart_ns: Sequence[int], took_ns: Sequence[int]) -> bool:
    """The same, and that nothing begins before the entry before it."""
    return min(apart_ns) >= 0 and sum(apart_ns) < FARTHEST and near(took_ns)
