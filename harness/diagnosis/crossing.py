"""Who is wrong where no group has a majority, but groups cross: what is whole along two axes of a
mesh has two sets of replicas, and a rank with other bits than both of them is alone in both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.state.replicas import Suspicion, Track


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """`rank` differs from `others`, each by itself of one group of replicas."""

    rank: int
    others: tuple[frozenset[int], ...]
    axes: tuple[str, ...]
    """Of the mesh, one for each; empty where there is no mesh."""


def alone(known: Suspicion, others: Sequence[Suspicion]) -> Crossing | None:
    """The one rank of `known`, which nobody outvotes, that all groups with a difference at the same
    look have in common; None where they have none, or there is but one group.

    Two faults on two ranks at the same look could look the same; one is the simpler explanation.
    """
    met: dict[frozenset[int], Suspicion] = {known.group: known}
    for other in others:
        if other.kind == "split" and _same_look(known, other) and other.group & known.group:
            met.setdefault(other.group, other)
    common = frozenset.intersection(*met)
    # A group within another one adds nothing that this one does not say.
    if len(common) != 1 or any(one < two for one in met for two in met):
        return None
    (rank,) = common
    if not all(_odd(rank, one) for one in met.values()):
        return None
    return Crossing(
        rank=rank,
        others=tuple(group - common for group in met),
        axes=tuple(one.track.part.axis for one in met.values()),
    )


def unfinished(known: Suspicion, tracks: Iterable[Track]) -> bool:
    """Whether a group that crosses that of `known` has not told of the same look yet."""
    mine = known.track.part
    return any(
        (track.part.site, track.part.clock, track.part.place) == (mine.site, mine.clock, mine.place)
        and track.looks > 0
        and 0 <= track.done < known.at.count
        and track.members & known.group
        and not track.members <= known.group
        for track in tracks
    )


def _odd(rank: int, known: Suspicion) -> bool:
    """Whether all others of the group have the same digest, and the rank has not."""
    classes = {ranks & known.group for ranks in known.at.classes if ranks & known.group}
    return classes == {frozenset({rank}), known.group - {rank}}


def _same_look(one: Suspicion, other: Suspicion) -> bool:
    mine, theirs = one.track.part, other.track.part
    return (mine.site, mine.clock, mine.place, one.at.count) == (
        theirs.site,
        theirs.clock,
        theirs.place,
        other.at.count,
    )
