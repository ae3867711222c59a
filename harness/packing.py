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
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from harness.collectives import Collective, GroupCreation, PointToPoint
from harness.columns import (
    FLOW_NUMBERS,
    Columns,
    Creations,
    Exchanged,
    Flows,
    Kind,
    MadeGroup,
    MessageColumns,
    MessageKind,
    Recorded,
)
from harness.incidents import Where
from harness.observations import EvidenceOfNode, EvidenceTaken
from harness.packedgroups import MOST_MEMBERS, groups_of
from harness.sightings import Flow, Frame
from harness.topology import MOST_RANKS, Runs, runs_of

T = TypeVar("T")

_KEPT = 1024
_LATEST_NS = 1 << 63
_FARTHEST = 1 << 62


_Place = Annotated[int, msgspec.Meta(ge=0)]
_Apart = Annotated[int, msgspec.Meta(ge=0)]
_Took = Annotated[int, msgspec.Meta(ge=-_FARTHEST, le=_FARTHEST)]


class _Stack(msgspec.Struct):
    frames: tuple[Frame, ...]
    frames_by: str
    user_frame: Where | None
    branches: tuple[str, ...]


class _Rank(msgspec.Struct):
    taken: EvidenceTaken
    stack: int = -1
    record: int = -1
    groups: tuple[str, ...] = ()
    apart_ns: tuple[int, ...] = ()
    made: tuple[_Place, ...] = ()
    places: tuple[int, ...] = ()
    made_apart_ns: tuple[_Apart, ...] = ()
    made_took_ns: tuple[_Took, ...] = ()
    exchanged: int = -1
    message_groups: tuple[str, ...] = ()
    message_apart_ns: tuple[_Apart, ...] = ()
    message_took_ns: tuple[_Took, ...] = ()
    peers: tuple[tuple[int, ...], ...] = ()
    flows: tuple[int, ...] = ()
    lines: tuple[_Place, ...] = ()


class _Node(msgspec.Struct):
    node_rank: int
    stacks: tuple[msgspec.Raw, ...] = ()
    records: tuple[msgspec.Raw, ...] = ()
    ranks: tuple[_Rank, ...] = ()
    groups: tuple[msgspec.Raw, ...] = ()
    messages: tuple[msgspec.Raw, ...] = ()
    hosts: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


_nodes = msgspec.json.Decoder(_Node)
_stacks = msgspec.json.Decoder(_Stack)
_old_stacks = msgspec.json.Decoder(tuple[Frame, ...])
_records = msgspec.json.Decoder(Columns)
_messages = msgspec.json.Decoder(MessageColumns)
_encode = msgspec.json.encode


# --- into a line ---------------------------------------------------------------------------------


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
            one["stack"] = self.stacks.place({name: getattr(taken, name) for name in alone})
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
        if not _are_times(apart_ns):
            return None
        return {"record": self.records.place(columns), "groups": names, "apart_ns": apart_ns}

    def _exchanged(self, taken: EvidenceTaken) -> dict[str, Any] | None:
        columns, names = _messages_in_columns(taken)
        apart_ns, took_ns = _times(taken.p2p)
        if not _in_order(apart_ns, took_ns) or not _near((taken.rank, *columns.ends)):
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


def _are_times(apart_ns: Sequence[int]) -> bool:
    """Whether what they add up to are numbers that a line can hold."""
    return sum(map(abs, apart_ns)) < _LATEST_NS


def _in_order(apart_ns: Sequence[int], took_ns: Sequence[int]) -> bool:
    """The same, and that nothing begins before the entry before it."""
    return min(apart_ns) >= 0 and sum(apart_ns) < _FARTHEST and _near(took_ns)


def _near(numbers: Sequence[int]) -> bool:
    """Whether sums of two are numbers that a line can hold."""
    return max(map(abs, numbers), default=0) < _FARTHEST


# --- out of a line -------------------------------------------------------------------------------


def unpacked(raw: msgspec.Raw) -> EvidenceOfNode:
    """The event in a line. Raises msgspec.ValidationError."""
    node = _nodes.decode(raw)
    stacks = [_stack(bytes(each)) for each in node.stacks]
    records = [_record(bytes(each)) for each in node.records]
    messages = [_message(bytes(each)) for each in node.messages]
    groups = groups_of(node.groups)
    for one in node.ranks:
        taken = one.taken
        # What the decoder has just made is nobody else's yet; another copy of each would cost more
        # than all the rest.
        if one.stack >= 0:
            for name, value in _at(stacks, one.stack):
                object.__setattr__(taken, name, value)
        if one.record >= 0:
            object.__setattr__(taken, "collectives", _recorded(one, _at(records, one.record)))
        if one.made:
            object.__setattr__(taken, "groups", _creations(one, groups))
        if one.exchanged >= 0:
            object.__setattr__(taken, "p2p", _exchanged(one, _at(messages, one.exchanged)))
        if one.flows:
            _put_flows(one, node.hosts)
        if one.lines:
            object.__setattr__(taken, "last_lines", _listed(node.lines, one.lines))
    return EvidenceOfNode(node_rank=node.node_rank, taken=tuple([one.taken for one in node.ranks]))


def _at(many: Sequence[Any], place: int) -> Any:
    if place >= len(many):
        raise msgspec.ValidationError(f"no stack or record number {place}")
    return many[place]


def _listed(many: Sequence[T], places: Sequence[int]) -> tuple[T, ...]:
    try:
        return tuple(map(many.__getitem__, places))
    except IndexError:
        raise msgspec.ValidationError("a place in a list that ends before it") from None


def _recorded(one: _Rank, columns: Columns) -> Recorded:
    if len(one.groups) != len(columns.descs) or len(one.apart_ns) != len(columns.records):
        raise msgspec.ValidationError("groups or times that do not belong to the record")
    if not _are_times(one.apart_ns):
        raise msgspec.ValidationError("entries of a record at no possible time")
    return Recorded(columns, one.groups, one.apart_ns)


def _creations(one: _Rank, groups: Sequence[MadeGroup]) -> Creations:
    count = len(one.made)
    if not len(one.places) == len(one.made_apart_ns) == len(one.made_took_ns) == count:
        raise msgspec.ValidationError("places or times that do not belong to the groups")
    if sum(one.made_apart_ns) >= _FARTHEST:
        raise msgspec.ValidationError("groups made at no possible time")
    made = _listed(groups, one.made)
    return Creations(made, one.places, one.made_apart_ns, one.made_took_ns)


def _exchanged(one: _Rank, columns: MessageColumns) -> Exchanged:
    names, count = one.message_groups, len(columns.numbers)
    if (
        len(names) != len(columns.descs)
        or not len(one.message_apart_ns) == len(one.message_took_ns) == count
    ):
        raise msgspec.ValidationError("groups or times that do not belong to the messages")
    if sum(one.message_apart_ns) >= _FARTHEST:
        raise msgspec.ValidationError("messages at no possible time")
    if not -_FARTHEST < one.taken.rank < _FARTHEST:
        raise msgspec.ValidationError("messages with no possible rank")
    return Exchanged(
        columns, one.taken.rank, names, one.message_apart_ns, one.message_took_ns
    )  # fmt: skip


def _put_flows(one: _Rank, hosts: tuple[str, ...]) -> None:
    peers, numbers, traffic = one.peers, one.flows, one.taken.traffic
    if traffic is None or len(numbers) != FLOW_NUMBERS * len(peers):
        raise msgspec.ValidationError("connections that do not belong to the traffic")
    places = numbers[::FLOW_NUMBERS] + numbers[1::FLOW_NUMBERS]
    if not _within(places, len(hosts)):
        raise msgspec.ValidationError("an address that is not listed")
    object.__setattr__(traffic, "flows", Flows(hosts, peers, numbers))


@lru_cache(maxsize=_KEPT)
def _stack(raw: bytes) -> tuple[tuple[str, Any], ...]:
    """Fields of an EvidenceTaken with what they hold; of journals without groups frames alone."""
    if raw.startswith(b"["):
        return (("frames", _old_stacks.decode(raw)),)
    it = _stacks.decode(raw)
    return tuple((name, getattr(it, name)) for name in it.__struct_fields__)


@lru_cache(maxsize=_KEPT)
def _record(raw: bytes) -> Columns:
    it = _records.decode(raw)
    _check_columns(it, (it.records, it.seqs, it.groups, it.kinds))
    return it


@lru_cache(maxsize=_KEPT)
def _message(raw: bytes) -> MessageColumns:
    it = _messages.decode(raw)
    _check_columns(it, (it.numbers, it.ends, it.groups, it.kinds))
    if not _near(it.ends):
        raise msgspec.ValidationError("messages with a rank that no run has")
    return it


def _check_columns(it: Columns | MessageColumns, columns: Sequence[Sequence[int]]) -> None:
    if len(set(map(len, columns))) > 1:
        raise msgspec.ValidationError("columns of different lengths in a record")
    if not _within(it.groups, len(it.descs)) or not _within(it.kinds, len(it.of)):
        raise msgspec.ValidationError("an entry of a group or kind that is not listed")


def _within(places: Sequence[int], count: int) -> bool:
    return not places or (min(places) >= 0 and max(places) < count)
