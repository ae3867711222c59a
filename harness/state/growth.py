"""What each rank holds over time: open files and memory, as a few points from its first step on."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from harness.sightings import Vitals

Kind = Literal["fds", "memory"]
KINDS: tuple[Kind, ...] = ("fds", "memory")

_MOST_POINTS = 64
_FEWEST_POINTS = 6
_QUIET_NS = 5_000_000_000
"""Without a reading for this long nothing had changed, until just before the next one."""
_LEAST: dict[Kind, int] = {"fds": 40, "memory": 64 << 20}
_LEAST_SHARE = 0.2
"""Of what it held at first."""
_LEAST_OF_QUARTER = 0.5
_MOST_OF_QUARTER = 1.7
_DIP = 0.05
_LEAST_PROGRESS = 20
_ALONE_SECONDS: dict[Kind, float] = {"fds": 7.0, "memory": 10.0}
"""Where other ranks of the same program do not grow."""
ALONE_BYTES = 200 << 20
"""A rank of its own kind may well gather less: results, logs, a cache."""
_LONG_SECONDS = 60.0
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """`progress` counts steps, or operations where no steps are counted."""

    at_ns: int
    fds: int
    memory_bytes: int
    progress: int

    def of(self, kind: Kind) -> int:
        return self.fds if kind == "fds" else self.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Even growth from the first point to the newest."""

    first: int
    now: int
    seconds: float
    progress: int
    since_ns: int

    @property
    def grown(self) -> int:
        return self.now - self.first

    @property
    def per_second(self) -> float:
        return self.grown / self.seconds


@dataclass(slots=True)
class RankGrowth:
    """The points lie at least `apart_ns` apart; the newest may be closer to the one before."""

    node_rank: int
    points: list[Point] = field(default_factory=list)
    apart_ns: int = 0
    fd_limit: int = 0
    steps: bool = False
    """Whether `progress` counts steps."""
    trends: dict[Kind, Trend] = field(default_factory=dict)
    """Where it has grown by an amount that matters, and evenly."""

    def since(self, kind: Kind, at_ns: int) -> float:
        """How much more it holds than at `at_ns`."""
        if not self.points or self.points[0].at_ns >= self.points[-1].at_ns:
            return 0.0
        return self.points[-1].of(kind) - _at(self.points, at_ns, kind)


@dataclass(slots=True)
class Growth:
    """`leaks` names, by kind, the ranks that use up what they will run out of."""

    ranks: dict[int, RankGrowth] = field(default_factory=dict)
    available: dict[int, int] = field(default_factory=dict)
    """By node: bytes of memory left."""
    leaks: dict[Kind, tuple[int, ...]] = field(default_factory=dict)
    judged_ns: int = 0
    ref: tuple[str, int] = ("", 0)
    """Source and seq of the newest report."""

    def seconds_left(self, kind: Kind, rank: int) -> float:
        """Until the limit is hit when it goes on like this."""
        grown = self.ranks[rank]
        trend = grown.trends[kind]
        if kind == "fds":
            left = grown.fd_limit - trend.now
            return left / trend.per_second if grown.fd_limit else float("inf")
        together = sum(
            other.trends[kind].per_second
            for other in self.ranks.values()
            if other.node_rank == grown.node_rank and kind in other.trends
        )
        available = self.available.get(grown.node_rank, 0)
        return available / together if available else float("inf")


def note(grown: RankGrowth, seen: Vitals, at_ns: int, *, judged: bool = True) -> None:
    """A reading; readings come when something has changed. Of many, every second is forgotten; all
    but the newest where nothing is `judged`."""
    grown.fd_limit = seen.fd_limit
    progress, steps = seen.step or seen.collectives, seen.step > 0
    newest = Point(at_ns=at_ns, fds=seen.fds, memory_bytes=seen.memory_bytes, progress=progress)
    if not judged:
        grown.points = [newest]
        return
    if steps != grown.steps:
        grown.points.clear()  # counted in another way from here on
        grown.steps = steps
    points = grown.points
    if points and at_ns - points[-1].at_ns > _QUIET_NS:
        _add(grown, replace(points[-1], at_ns=at_ns - _QUIET_NS // 2, progress=progress))
    _add(grown, newest)
    for kind in KINDS:
        grown.trends.pop(kind, None)
        first, now = points[0].of(kind), points[-1].of(kind)
        if now - first >= max(_LEAST[kind], _LEAST_SHARE * first):
            found = trend(grown, kind)
            if found is not None and found.grown >= max(_LEAST[kind], _LEAST_SHARE * found.first):
                grown.trends[kind] = found


def _add(grown: RankGrowth, point: Point) -> None:
    points = grown.points
    if len(points) > 1 and point.at_ns - points[-2].at_ns < grown.apart_ns:
        points[-1] = point
        return
    points.append(point)
    if len(points) > _MOST_POINTS:
        del points[1::2]
        grown.apart_ns = (points[-1].at_ns - points[0].at_ns) // (_MOST_POINTS // 2)


def judge(growth: Growth, world_size: int) -> None:
    """Bring `leaks` up to date."""
    for kind in KINDS:
        growing = {rank: seen for rank, seen in growth.ranks.items() if kind in seen.trends}
        leaking = _leaking(growth, kind, growing, world_size) if growing else ()
        if leaking:
            growth.leaks[kind] = leaking
        else:
            growth.leaks.pop(kind, None)


def _leaking(
    growth: Growth, kind: Kind, growing: dict[int, RankGrowth], world_size: int
) -> tuple[int, ...]:
    """All ranks that leak, as soon as none is in doubt: one that grows half as much must have
    been seen to grow as evenly."""
    trends = {rank: seen.trends[kind] for rank, seen in growing.items()}
    most = max(trends, key=lambda rank: trends[rank].grown)
    top = trends[most]
    ranks = tuple(sorted(r for r, found in trends.items() if 2 * found.grown >= top.grown))
    others = [
        seen.since(kind, top.since_ns) for rank, seen in growth.ranks.items() if rank not in ranks
    ]
    if any(2 * other >= top.grown for other in others):
        return ()
    if top.progress < _LEAST_PROGRESS or growth.seconds_left(kind, most) > _DAY_SECONDS:
        return ()
    alone = 2 * len(ranks) <= world_size and all(5 * other <= top.grown for other in others)
    enough = kind == "fds" or top.grown >= ALONE_BYTES
    if alone and enough and top.seconds >= _ALONE_SECONDS[kind]:
        return ranks
    if kind == "fds":
        # Nothing healthy opens files evenly, step after step.
        half = 2 * top.now >= growing[most].fd_limit
        return ranks if top.seconds >= (_ALONE_SECONDS[kind] if half else _LONG_SECONDS) else ()
    node = growing[most].node_rank
    together = sum(seen.trends[kind].grown for seen in growing.values() if seen.node_rank == node)
    half = together >= growth.available.get(node, 0) > 0
    return ranks if half and top.seconds >= _LONG_SECONDS else ()


def trend(grown: RankGrowth, kind: Kind) -> Trend | None:
    """Growth that goes on evenly: each quarter of the time has about its share of it, and there
    was progress in each. What a start, a cache or an allocator takes comes early or at once.

    Judged from the newest point backwards over the longest time that is even; None when there is
    no such time.
    """
    for begin in _beginnings(len(grown.points)):
        found = _even(grown.points[begin:], kind)
        if found is not None:
            return found
    return None


def _beginnings(count: int) -> list[int]:
    """All points, or without the first quarter or half: growth may begin later."""
    return sorted({0, count // 4, count // 2}) if count >= _FEWEST_POINTS else []


def _even(points: list[Point], kind: Kind) -> Trend | None:
    if len(points) < _FEWEST_POINTS:
        return None
    first, last = points[0], points[-1]
    total, length_ns = last.of(kind) - first.of(kind), last.at_ns - first.at_ns
    progress = last.progress - first.progress
    if total <= 0 or length_ns <= 0 or progress <= 0:
        return None
    marks = [_at(points, first.at_ns + length_ns * part // 4, kind) for part in range(5)]
    shares = [(after - before) / total * 4 for before, after in pairwise(marks)]
    if not all(_LEAST_OF_QUARTER <= share <= _MOST_OF_QUARTER for share in shares):
        return None
    values = [point.of(kind) for point in points]
    if any(after < before - _DIP * total for before, after in pairwise(values)):
        return None
    return Trend(
        first=first.of(kind),
        now=last.of(kind),
        seconds=length_ns / 1e9,
        progress=progress,
        since_ns=first.at_ns,
    )


def _at(points: list[Point], at_ns: int, kind: Kind) -> float:
    """The value at a time, between two points on the line that joins them."""
    for before, after in pairwise(points):
        if at_ns <= after.at_ns:
            share = (at_ns - before.at_ns) / max(1, after.at_ns - before.at_ns)
            return before.of(kind) + share * (after.of(kind) - before.of(kind))
    return points[-1].of(kind)
