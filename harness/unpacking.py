"""Evidence of the ranks of one node out of its line, as `harness.packing` has put it there: what
many nodes have in common is decoded once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from harness.columns import (
    FLOW_NUMBERS,
    Columns,
    Creations,
    Exchanged,
    Flows,
    MadeGroup,
    MessageColumns,
    Recorded,
)
from harness.incidents import Where
from harness.observations import EvidenceOfNode, EvidenceTaken
from harness.packedgroups import groups_of
from harness.sightings import Frame

T = TypeVar("T")

_KEPT = 1024
LATEST_NS = 1 << 63
"""Nanoseconds; a line holds numbers of 64 bits."""
FARTHEST = 1 << 62

_Place = Annotated[int, msgspec.Meta(ge=0)]
_Apart = Annotated[int, msgspec.Meta(ge=0)]
_Took = Annotated[int, msgspec.Meta(ge=-FARTHEST, le=FARTHEST)]


class _Stack(msgspec.Struct):
    files: tuple[str, ...]
    frames: tuple[tuple[_Place, int, str], ...]
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
    if not are_times(one.apart_ns):
        raise msgspec.ValidationError("entries of a record at no possible time")
    return Recorded(columns, one.groups, one.apart_ns)


def _creations(one: _Rank, groups: Sequence[MadeGroup]) -> Creations:
    count = len(one.made)
    if not len(one.places) == len(one.made_apart_ns) == len(one.made_took_ns) == count:
        raise msgspec.ValidationError("places or times that do not belong to the groups")
    if sum(one.made_apart_ns) >= FARTHEST:
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
    if sum(one.message_apart_ns) >= FARTHEST:
        raise msgspec.ValidationError("messages at no possible time")
    if not -FARTHEST < one.taken.rank < FARTHEST:
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
    if any(place >= len(it.files) for place, _, _ in it.frames):
        raise msgspec.ValidationError("a frame in a file that is not listed")
    frames = tuple(
        Frame(file=it.files[place], line=line, function=function)
        for place, line, function in it.frames
    )
    return (
        ("frames", frames),
        ("frames_by", it.frames_by),
        ("user_frame", it.user_frame),
        ("branches", it.branches),
    )


@lru_cache(maxsize=_KEPT)
def _record(raw: bytes) -> Columns:
    it = _records.decode(raw)
    _check_columns(it, (it.records, it.seqs, it.groups, it.kinds))
    return it


@lru_cache(maxsize=_KEPT)
def _message(raw: bytes) -> MessageColumns:
    it = _messages.decode(raw)
    _check_columns(it, (it.numbers, it.ends, it.groups, it.kinds))
    if not near(it.ends):
        raise msgspec.ValidationError("messages with a rank that no run has")
    return it


def _check_columns(it: Columns | MessageColumns, columns: Sequence[Sequence[int]]) -> None:
    if len(set(map(len, columns))) > 1:
        raise msgspec.ValidationError("columns of different lengths in a record")
    if not _within(it.groups, len(it.descs)) or not _within(it.kinds, len(it.of)):
        raise msgspec.ValidationError("an entry of a group or kind that is not listed")


def _within(places: Sequence[int], count: int) -> bool:
    return not places or (min(places) >= 0 and max(places) < count)


def are_times(apart_ns: Sequence[int]) -> bool:
    """Whether what they add up to are numbers that a line can hold."""
    return sum(map(abs, apart_ns)) < LATEST_NS


def near(numbers: Sequence[int]) -> bool:
    """Whether sums of two are numbers that a line can hold."""
    return max(map(abs, numbers), default=0) < FARTHEST
