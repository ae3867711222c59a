"""Saving by the clock: at the right times, alike on all ranks, with few looks."""

from itertools import pairwise

import pytest

from harness.errors import UsageError
from harness.sdk.checkpoint.pace import Decision, Pace, told_interval


class Ranks:
    """Three ranks whose clocks differ; only rank 0's may count."""

    def __init__(self, seconds: float) -> None:
        self.now, self.looks = 0.0, 0
        clocks = (lambda: self.now, lambda: 7 * self.now, lambda: 0.0)
        self.paces = [Pace(seconds, clock) for clock in clocks]

    def step(self, step: int, seconds: float) -> bool:
        self.now += seconds
        told: list[Decision] = []

        def from_first(own: Decision) -> Decision:
            told.append(own)
            return told[0]

        asked = [pace.due(step, from_first) for pace in self.paces]
        assert len(set(asked)) == 1
        assert len(told) in (0, 3)
        self.looks += bool(told)
        if asked[0]:
            for pace in self.paces:
                pace.saved()
        return asked[0]


@pytest.mark.parametrize(("each", "interval"), [(0.01, 5.0), (0.3, 60.0), (20.0, 50.0), (9.0, 1.0)])
def test_saves_are_as_far_apart_as_told(each: float, interval: float) -> None:
    ranks = Ranks(interval)
    steps = max(40, int(5.2 * interval / each))
    saved = [step for step in range(1, steps) if ranks.step(step, each)]
    gaps = [(b - a) * each for a, b in pairwise(saved)]
    assert len(gaps) >= 3
    assert all(abs(gap - max(interval, each)) <= max(0.6 * each, 0.02 * interval) for gap in gaps)


def test_looks_are_rare() -> None:
    ranks = Ranks(60.0)
    for step in range(1, 20_001):
        ranks.step(step, 0.01)
    assert ranks.looks < 60


def test_steps_that_become_slower_do_not_put_off_a_save_for_ever() -> None:
    ranks = Ranks(60.0)
    for step in range(1, 1001):
        ranks.step(step, 0.3)
    began = ranks.now
    step = 1001
    while not ranks.step(step, 3.0):
        step += 1
    assert ranks.now - began < 6 * 60


def test_steps_that_are_left_out() -> None:
    """An evaluation, or a script that asks at every tenth step only."""
    ranks = Ranks(30.0)
    saved = [step for step in range(10, 1000, 10) if ranks.step(step, 1.0)]
    assert [b - a for a, b in pairwise(saved)] == [300] * (len(saved) - 1)


def test_what_is_told() -> None:
    for said, seconds in (("", 0.0), ("auto", 0.0), ("0", 0.0), ("90", 90.0), ("2.5", 2.5)):
        assert told_interval({"HARNESS_CHECKPOINT_INTERVAL": said}) == seconds
    for said in ("soon", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match="not a number of seconds"):
            told_interval({"HARNESS_CHECKPOINT_INTERVAL": said})
