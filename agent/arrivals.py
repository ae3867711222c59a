"""When a rank entered its collectives, picked from the flight records that snapshots bring.

A rank may record hundreds of operations a second, and ranks are looked at one after the other.
So that the same operations are picked on every rank, they are thinned by their sequence number
alone: blocks of eight in a row, of those every second, every fourth and so on.
"""

import math
from collections import Counter

import msgspec

from harness import events as e
from harness.collectives import same_input
from harness.sightings import RankArrivals

BLOCK = 8
MOST = 48
"""Arrivals of a rank in one report."""
_SPARE = 2 * MOST
_KEPT = 4000
_WHOLE_WORLD = 256
"""In larger worlds every rank says less, and less often."""


class _Entry(msgspec.Struct):
    record_id: int
    collective_seq_id: int
    profiling_name: str
    time_created_ns: int
    process_group: tuple[str, str] = ("", "")
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []

    @property
    def call(self) -> str:
        """What all members must have in common, in words: operation, numbers of elements, types.

        Only their numbers: one may pass a tensor flat, another in rows.
        """
        op = self.profiling_name.rpartition(":")[2]
        if not same_input(self.profiling_name):
            return op
        sizes = "+".join(str(math.prod(shape)) for shape in self.input_sizes)
        kinds = ",".join(sorted(set(self.input_dtypes))).lower()
        return " ".join(part for part in (op, sizes, kinds) if part)


class _Record(msgspec.Struct):
    entries: list[_Entry] = []


_DECODER = msgspec.json.Decoder(_Record)


class ArrivalLog:
    """The arrivals of one worker that have not been reported yet."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._seen = -1

    def note(self, data: bytes) -> None:
        """Take over what is new in a flight record; what is none changes nothing."""
        try:
            entries = _DECODER.decode(data).entries
        except msgspec.MsgspecError:
            return
        fresh = [entry for entry in entries if entry.record_id > self._seen]
        if fresh:
            self._seen = max(entry.record_id for entry in fresh)
            self._entries = [*self._entries, *fresh][-_KEPT:]

    def take(self, most: int) -> list[_Entry]:
        """About `most` of them, oldest first, and none of them again."""
        entries, self._entries = self._entries, []
        entries.sort(key=lambda entry: entry.record_id)
        return _thinned(entries, most)


def _thinned(entries: list[_Entry], most: int) -> list[_Entry]:
    """Whole blocks of each group's operations, and what the rank did right before each."""
    counts = Counter(entry.process_group[0] for entry in entries if not entry.is_p2p)
    if sum(counts.values()) <= most:
        return [entry for entry in entries if not entry.is_p2p]
    share = max(most // len(counts), BLOCK)
    strides = {group: _stride(count, share) for group, count in counts.items()}
    kept: list[_Entry] = []
    before: _Entry | None = None
    for entry in entries:
        if entry.is_p2p:
            continue
        if entry.collective_seq_id // BLOCK % strides[entry.process_group[0]] == 0:
            if before is not None and (not kept or kept[-1] is not before):
                kept.append(before)
            kept.append(entry)
        before = entry
    return kept[-_SPARE:]


def _stride(count: int, share: int) -> int:
    stride = 1
    while count > share * stride:
        stride *= 2
    return stride


def slower(world_size: int) -> float:
    """How many times less often than a small world a large one reports."""
    return min(max(1.0, world_size / _WHOLE_WORLD), 15.0)


def most_entries(world_size: int) -> int:
    """Arrivals of a rank in one report."""
    return max(BLOCK, int(MOST / max(1.0, world_size / _WHOLE_WORLD)))


def event(
    node_rank: int, taken: dict[int, list[_Entry]], peers: dict[int, tuple[int, ...]]
) -> e.ArrivalsRead | None:
    """What was taken of each rank as one event; None when there is nothing to say."""
    every = [entry for entries in taken.values() for entry in entries]
    if not every:
        return None
    base_ns = min(entry.time_created_ns for entry in every)
    ops = {entry.process_group[0]: entry.profiling_name for entry in every}
    places = {group: at for at, group in enumerate(ops)}
    calls = {call: at for at, call in enumerate(dict.fromkeys(entry.call for entry in every))}
    return e.ArrivalsRead(
        node_rank=node_rank,
        base_ns=base_ns,
        groups=tuple(ops),
        ops=tuple(name.rpartition(":")[2] for name in ops.values()),
        calls=tuple(calls),
        ranks=tuple(
            RankArrivals(
                rank=rank,
                records=tuple(entry.record_id for entry in entries),
                groups=tuple(places[entry.process_group[0]] for entry in entries),
                seqs=tuple(entry.collective_seq_id for entry in entries),
                entered_us=tuple((entry.time_created_ns - base_ns) // 1000 for entry in entries),
                calls=tuple(calls[entry.call] for entry in entries),
                peers=peers.get(rank, ()),
            )
            for rank, entries in taken.items()
            if entries
        ),
    )
