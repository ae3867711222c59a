"""Evidence of the ranks of one node as one line: what they have in common is written once.

    {"node_rank": 5, "stacks": [...], "records": [...],
     "ranks": [{"taken": {...}, "stack": 0, "record": 0, "groups": [...], "apart_ns": [...]}, ...]}

`stacks` are the frames of an EvidenceTaken, `records` the columns of its flight record
(`harness.collectives.Columns`), and each rank has its place in both; `groups` are the names of its
process groups and `apart_ns` the nanoseconds since the entry before. A journal of thousands of
ranks is read in a tenth of the time: a stack or record that many nodes have is decoded once.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from harness.collectives import Collective, Columns, Kind, Recorded
from harness.observations import EvidenceOfNode, EvidenceTaken
from harness.sightings import Frame

_KEPT = 1024
_LATEST_NS = 1 << 63


class _Rank(msgspec.Struct):
    taken: EvidenceTaken
    stack: int = -1
    record: int = -1
    groups: tuple[str, ...] = ()
    apart_ns: tuple[int, ...] = ()


class _Node(msgspec.Struct):
    node_rank: int
    stacks: tuple[msgspec.Raw, ...] = ()
    records: tuple[msgspec.Raw, ...] = ()
    ranks: tuple[_Rank, ...] = ()


_nodes = msgspec.json.Decoder(_Node)
_stacks = msgspec.json.Decoder(tuple[Frame, ...])
_records = msgspec.json.Decoder(Columns)
_encode = msgspec.json.encode


def packed(event: EvidenceOfNode) -> dict[str, Any]:
    """What stands in the line for `event`."""
    stacks: dict[tuple[Frame, ...], int] = {}
    records: dict[bytes, int] = {}
    ranks = []
    for taken in event.taken:
        columns, groups, apart_ns = _in_columns(taken.collectives)
        entries = () if _are_times(apart_ns) else taken.collectives
        # A field that is not there is slower to decode than one that is empty.
        one: dict[str, Any] = {"taken": replace(taken, frames=(), collectives=entries)}
        if taken.frames:
            one["stack"] = stacks.setdefault(taken.frames, len(stacks))
        if taken.collectives and not entries:
            number = records.setdefault(_encode(columns), len(records))
            one |= {"record": number, "groups": groups, "apart_ns": apart_ns}
        ranks.append(one)
    return {
        "node_rank": event.node_rank,
        "stacks": list(stacks),
        "records": [msgspec.Raw(record) for record in records],
        "ranks": ranks,
    }


def unpacked(raw: msgspec.Raw) -> EvidenceOfNode:
    """The event in a line. Raises msgspec.ValidationError."""
    node = _nodes.decode(raw)
    stacks = [_stack(bytes(each)) for each in node.stacks]
    records = [_record(bytes(each)) for each in node.records]
    for one in node.ranks:
        # What the decoder has just made is nobody else's yet; another copy of each would cost more
        # than all the rest.
        if one.stack >= 0:
            object.__setattr__(one.taken, "frames", _at(stacks, one.stack))
        if one.record >= 0:
            columns = _at(records, one.record)
            if len(one.groups) != len(columns.descs) or len(one.apart_ns) != len(columns.records):
                raise msgspec.ValidationError("groups or times that do not belong to the record")
            if not _are_times(one.apart_ns):
                raise msgspec.ValidationError("entries of a record at no possible time")
            recorded = Recorded(columns, one.groups, one.apart_ns)
            object.__setattr__(one.taken, "collectives", recorded)
    return EvidenceOfNode(node_rank=node.node_rank, taken=tuple([one.taken for one in node.ranks]))


def _are_times(apart_ns: Sequence[int]) -> bool:
    """Whether what they add up to are numbers that a line can hold."""
    return sum(map(abs, apart_ns)) < _LATEST_NS


def _at(many: Sequence[Any], place: int) -> Any:
    if place >= len(many):
        raise msgspec.ValidationError(f"no stack or record number {place}")
    return many[place]


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
    times = [0, *(entry.created_ns for entry in entries)]
    apart_ns = tuple(later - earlier for earlier, later in pairwise(times))
    return columns, tuple(name for name, _ in groups), apart_ns


@lru_cache(maxsize=_KEPT)
def _stack(raw: bytes) -> tuple[Frame, ...]:
    return _stacks.decode(raw)


@lru_cache(maxsize=_KEPT)
def _record(raw: bytes) -> Columns:
    it = _records.decode(raw)
    count = len(it.records)
    columns = (it.seqs, it.groups, it.kinds)
    if any(len(column) != count for column in columns):
        raise msgspec.ValidationError("columns of different lengths in a record")
    if not _within(it.groups, len(it.descs)) or not _within(it.kinds, len(it.of)):
        raise msgspec.ValidationError("an entry of a group or kind that is not listed")
    return it


def _within(places: Sequence[int], count: int) -> bool:
    return not places or (min(places) >= 0 and max(places) < count)
