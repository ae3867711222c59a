"""Whether what an agent says can be true at all. Records are decoded into the right types; here the
numbers in them are held against each other, before the journal has them for good: what is in the
journal is folded by every controller and every reader to come."""

import math
from collections.abc import Iterable, Sequence

from harness import events as e
from harness.sightings import RankArrivals
from harness.topology import MOST_RANKS, Runs

_LONGEST = 10.0**9
"""Seconds, thirty years: no duration is longer."""


def flaw(event: e.Event) -> str:
    """Why `event` cannot be true, in words; empty when nothing speaks against it."""
    match event:
        case e.ArrivalsRead():
            return _arrivals(event)
        case e.MarksSampled():
            empty = any(not sample.ranks for sample in event.samples)
            return "a sample of no rank" if empty else ""
        case e.MarksDiffer():
            return _marks(event)
        case e.SetupsRead():
            return _runs(setup.ranks for setup in event.setups)
        case e.DigestsRead():
            return _runs(part.members for part in event.parts)
        case e.CheckpointSaved() | e.CheckpointLoaded():
            return _duration(event.seconds)
        case _:
            return ""


def _arrivals(event: e.ArrivalsRead) -> str:
    if len(event.ops) != len(event.groups):
        return f"{len(event.ops)} operations for {len(event.groups)} groups"
    for rank in event.ranks:
        if any(len(column) != len(rank.records) for column in _columns(rank)):
            return f"columns of different lengths for rank {rank.rank}"
        if not _within(rank.groups, len(event.groups)):
            return f"rank {rank.rank} in a group that is not listed"
        if not _within(rank.calls, len(event.calls)):
            return f"rank {rank.rank} made a call that is not listed"
    return ""


def _columns(rank: RankArrivals) -> Iterable[Sequence[int]]:
    yield from (rank.groups, rank.seqs, rank.entered_us)
    if rank.calls:
        yield rank.calls


def _within(positions: Sequence[int], count: int) -> bool:
    return not positions or (min(positions) >= 0 and max(positions) < count)


def _marks(event: e.MarksDiffer) -> str:
    here = {place.rank for place in event.places}
    if not event.odd or not here.issuperset(event.odd):
        return "odd ranks that are at no place"
    return "all ranks are odd" if not event.tied and here == set(event.odd) else ""


def _runs(of_all: Iterable[Runs]) -> str:
    for runs in of_all:
        if any(count < 0 for _, _, count in runs):
            return "a negative number of ranks"
        if sum(count for _, _, count in runs) > MOST_RANKS:
            return f"more than {MOST_RANKS} ranks"
    return ""


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST:
        return f"it took {seconds:g} s"
    return ""
