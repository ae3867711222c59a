"""How the figures of a run have gone over time: a bounded series of samples. Pure.

A sample is taken when a record comes and enough time has passed on the run's own clock, so a run
that is replayed has the same samples as one that is watched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from harness.events import AttemptStarted, FaultInjected, IncidentOpened, Record
from harness.goodput import ettr
from harness.state import RunState
from harness.tui.view import run_loss

MOST_SAMPLES = 480
_FIRST_SPACING_NS = 250_000_000
_RANKS_AT_A_TIME = 4096
"""So many are looked at four times a second; more of them, as much less often."""
_MOST_MARKS = 200


class Sample(NamedTuple):
    """One moment. `tokens` counts all tokens so far, `memory` is the most bytes a rank holds."""

    at_ns: int
    attempt: int
    step: int
    loss: float | None
    tokens: int
    memory: int
    ettr: float | None


class Mark(NamedTuple):
    """Something that happened at one moment: `attempt`, `incident` or `fault`."""

    at_ns: int
    kind: str


class Point(NamedTuple):
    at_ns: int
    value: float


_KINDS: Mapping[type, str] = {
    AttemptStarted: "attempt", IncidentOpened: "incident", FaultInjected: "fault",
}  # fmt: skip


class History:
    """The samples so far. When there are too many, every second is forgotten."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self.spacing_ns = _FIRST_SPACING_NS

    def take(self, record: Record, state: RunState) -> None:
        """`record` has been folded into `state`. Costs a look at every rank, once a spacing."""
        at_ns = record.stamp.wall_ns
        self._mark(record, at_ns)
        if state.attempt is None or state.ended is not None:
            return
        last = self.samples[-1] if self.samples else None
        looks = max(1, state.attempt.world_size // _RANKS_AT_A_TIME)
        if last is not None and at_ns - last.at_ns < self.spacing_ns * looks:
            return
        self.samples.append(_sample(state, at_ns))
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1::2]
            self.spacing_ns *= 2

    def _mark(self, record: Record, at_ns: int) -> None:
        kind = _KINDS.get(type(record.event))
        if kind is not None:
            self.marks.append(Mark(at_ns, kind))
            del self.marks[:-_MOST_MARKS]

    def losses(self) -> list[Point]:
        return [Point(s.at_ns, s.loss) for s in self.samples if s.loss is not None]

    def tokens_per_second(self) -> list[Point]:
        """Between samples; none where the count goes back, as it does after a restart."""
        return self._rates(lambda sample: sample.tokens)

    def steps_per_second(self) -> list[Point]:
        return self._rates(lambda sample: sample.step)

    def memory(self) -> list[Point]:
        """Bytes of the rank that holds most."""
        return [Point(s.at_ns, float(s.memory)) for s in self.samples if s.memory]

    def ettr(self) -> list[Point]:
        return [Point(s.at_ns, s.ettr) for s in self.samples if s.ettr is not None]

    def mfu(self, flops_per_token: float, peak_flops: float, world_size: int) -> list[Point]:
        """Model FLOP/s that were done, as a share of the peak of `world_size` devices: tokens per
        second x FLOPs per token / peak (PaLM, arXiv:2204.02311, appendix B)."""
        whole = peak_flops * max(1, world_size)
        rates = self.tokens_per_second()
        return [Point(point.at_ns, point.value * flops_per_token / whole) for point in rates]

    def _rates(self, count: Callable[[Sample], int]) -> list[Point]:
        """Per second, over at least a second: steps complete at once, samples are taken often."""
        points: list[Point] = []
        before: Sample | None = None
        for sample in self.samples:
            now = count(sample)
            if before is None or sample.attempt != before.attempt or now < count(before):
                before = sample
                continue
            if now and not count(before):
                before = sample  # the script has said where it goes on from
                continue
            seconds = (sample.at_ns - before.at_ns) / 1e9
            if seconds >= 1.0:
                points.append(Point(sample.at_ns, (now - count(before)) / seconds))
                before = sample
        return points if any(point.value for point in points) else []


def _sample(state: RunState, at_ns: int) -> Sample:
    attempt = state.attempt
    assert attempt is not None
    held = (
        grown.points[-1].memory_bytes for grown in attempt.growth.ranks.values() if grown.points
    )
    return Sample(
        at_ns=at_ns,
        attempt=attempt.index,
        step=attempt.step,
        loss=run_loss(state),
        tokens=max([rank.tokens for rank in attempt.ranks.values()], default=0),
        memory=max(held, default=0),
        ettr=ettr(state, at_ns),
    )


def thinned(points: Sequence[Point], columns: int) -> list[float | None]:
    """`points` as `columns` values that lie evenly in time: the mean of each stretch, what was
    before where nothing came, None before the first."""
    if not points or columns < 1:
        return []
    first, last = points[0].at_ns, points[-1].at_ns
    span = max(1, last - first)
    sums = [0.0] * columns
    counts = [0] * columns
    for point in points:
        at = min(columns - 1, (point.at_ns - first) * columns // span)
        sums[at] += point.value
        counts[at] += 1
    values: list[float | None] = []
    for total, count in zip(sums, counts, strict=True):
        values.append(total / count if count else values[-1] if values else None)
    return values


def median_step_seconds(points: Sequence[Point]) -> float | None:
    """What a step takes in the middle of the run so far, from steps per second."""
    values = sorted(point.value for point in points if point.value > 0)
    return 1.0 / values[len(values) // 2] if values else None
