"""When a loss has gone up to stay, and when it is only noisy, restarted or of other data."""

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import doubts
from harness.sightings import Doubt
from harness.state import AttemptState, digesting
from harness.state.words import RankState
from harness.worker.audits.losses import Losses

Told = list[dict[str, Any]]


class Optimizer:
    def __init__(self, rate: float) -> None:
        self.param_groups = [{"lr": rate}, {"lr": rate / 10}]


def watched(
    losses: Iterable[float],
    *,
    begin: int = 1,
    rate: Callable[[int], float] = lambda step: 1e-3,
    known: tuple[int, float] | None = None,
) -> Told:
    told: Told = []
    ticks = iter(range(1, 1 << 30))
    watching = Losses(lambda **doubt: told.append(doubt), known, lambda: next(ticks))
    for step, loss in enumerate(losses, begin):
        watching.rates(Optimizer(rate(step)))
        watching.saw(step, loss, step * 10)
    return told


def falling(steps: int, *, noise: float = 0.1, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [2 + 8 * math.exp(-step / 40) + draw.gauss(0, noise) for step in range(steps)]


def test_a_loss_that_goes_up_and_stays_is_told_once_with_its_first_step() -> None:
    told = watched([*falling(200), *[7.5 + 0.01 * n for n in range(40)]])
    assert [(each["count"], each["step"], each["looks"]) for each in told] == [(201, 200, 32)]
    assert 5 < told[0]["bound"] < 7.5
    assert told[0]["clean_ns"] < told[0]["at_ns"]
    assert "in step 201, after 2,010 tokens" in told[0]["shows"]


@pytest.mark.parametrize(
    "after",
    [
        [50.0] * 31 + [2.0] * 40,
        [12 * math.exp(-n / 12) + 2 for n in range(60)],
        [5.5 + 0.1 * (n % 5) for n in range(200)],
        [math.nan] * 100,
    ],
    ids=["short", "on its way back", "not half of what was gained", "not a number"],
)
def test_what_does_not_last_or_is_not_far_is_nothing(after: list[float]) -> None:
    assert watched([*falling(200), *after]) == []


def test_what_has_healed_once_is_given_twice_the_time() -> None:
    burst = [9.0] * 31
    steady = falling(400)[200:]
    assert watched([*falling(200), *burst, *steady, *burst, *burst, *steady]) == []
    assert len(watched([*falling(200), *burst, *steady, *burst * 4, *steady])) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_noisy_loss_is_nothing(seed: int) -> None:
    draw = random.Random(seed)
    heavy = [draw.lognormvariate(-0.02 * min(n, 100), 1.2) for n in range(1500)]
    blocks = [abs(draw.gauss(0.3 + 2 * (n // 50 % 3), 0.2)) for n in range(1500)]
    drift, walk = 0.0, []
    for _ in range(1500):
        drift = 0.98 * drift + draw.gauss(0, 0.2)
        walk.append(3 + drift)
    for losses in (heavy, blocks, walk):
        assert watched(losses) == []


def test_a_raised_learning_rate_explains_a_loss_that_rises() -> None:
    losses = [*falling(200), *[9.0] * 200]
    assert watched(losses, rate=lambda step: 1e-4 if step <= 200 else 1e-3) == []
    assert len(watched(losses, rate=lambda step: 1e-3 if step <= 200 else 1e-4)) == 1


def test_harder_data_is_no_spike() -> None:
    draw = random.Random(5)
    harder = [3.4 + draw.gauss(0, 0.15) for _ in range(300)]
    assert watched([*falling(300), *harder]) == []
    assert watched([*falling(400)[300:], *harder], begin=300) == []


def test_a_spike_known_from_the_attempt_before_needs_no_history() -> None:
    losses = [2.0] * 6 + [9.0] * 40
    assert watched(losses, begin=85) == []
    told = watched(losses, begin=85, known=(91, 4.0))
    assert [(each["count"], each["bound"]) for each in told] == [(91, 4.0)]
    assert watched(losses, begin=285, known=(91, 4.0)) == []


def attempt_of(*spiked: int, telling: int = 4) -> AttemptState:
    ranks = {rank: RankState(rank=rank, node_rank=0) for rank in range(4)}
    for rank in range(telling):
        ranks[rank].loss = 2.0
    attempt = AttemptState(index=0, world_size=4, ranks=ranks, nodes={}, why="", started_ns=0)
    attempt.surveyed_ns = 60_000_000_000
    for rank in spiked:
        doubt = Doubt(check="loss", subject="loss", step=40, count=41, at_ns=rank, bound=4.0)
        digesting.note(attempt, ("agent:0", rank), e.DoubtRaised(rank=rank, doubt=doubt))
    return attempt


def test_no_rank_is_named_where_nothing_points_at_one() -> None:
    found = doubts.find(attempt_of(0, 1, 2))
    assert [(f.verdict, f.ranks, f.confidence) for f in found] == [("loss_spike", (), "likely")]
    assert [f.ranks for f in doubts.find(attempt_of(0, telling=1))] == [()]


def test_the_loss_of_some_ranks_alone_is_of_their_data() -> None:
    assert doubts.find(attempt_of(2)) == []
    assert doubts.find(attempt_of(2, 3)) == []


def test_one_whose_gradients_alone_were_out_of_the_ordinary_is_named() -> None:
    attempt = attempt_of(0, 1, 2, 3)
    for seq, rank in enumerate((2, 3)):
        doubt = Doubt(check="norm", subject="w", step=38, at_ns=9, shows="norm 9", count=rank)
        digesting.note(attempt, ("agent:0", 50 + seq), e.DoubtRaised(rank=rank, doubt=doubt))
        assert [f.ranks for f in doubts.find(attempt)] == ([(2,)] if rank == 2 else [()])
