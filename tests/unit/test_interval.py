"""The interval between saves: the formulas, what they are fed with, what workers are told."""

from math import exp

import pytest

from harness import events as e
from harness import goodput
from harness import orders as o
from harness.agent.environment import worker_environ
from harness.config import Job
from harness.errors import UsageError
from harness.goodput.interval import FIRST_SECONDS, daly, young
from harness.policy import Policy
from harness.settings import BY_NAME, parse
from tests.replay.world import World


@pytest.mark.parametrize("save", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("mtbf", [600.0, 3600.0, 86400.0])
def test_the_higher_order_is_close_to_the_true_optimum(save: float, mtbf: float) -> None:
    """Daly's model: wall time is proportional to (e^((t + d) / M) - 1) / t."""

    def cost(interval: float) -> float:
        return (exp((interval + save) / mtbf) - 1) / interval

    best = min(cost(mtbf * at / 20000) for at in range(1, 20000))
    assert cost(daly(save, mtbf)) <= best * 1.0005
    assert cost(daly(save, mtbf)) <= cost(young(save, mtbf)) * 1.00001


def test_saves_longer_than_failures_are_apart() -> None:
    assert daly(100.0, 40.0) == 40.0


def trained(policy: Policy | None = None) -> World:
    world = World(nproc=2, policy=policy or Policy()).start()
    for step in range(1, 41):
        world.step(step, seconds=1)
        if step % 10 == 0:
            world.save(step)
    return world


def test_the_advice_follows_from_the_runs_own_numbers() -> None:
    world = trained()
    advice = goodput.advise(world.state)
    assert (advice.save, advice.failures, advice.every_steps) == (0.1, 0, 10)
    assert advice.mtbf == pytest.approx(50_676 * 3600 / 2)
    assert advice.seconds == pytest.approx(daly(0.1, advice.mtbf))
    assert advice.step == pytest.approx(0.99, abs=0.01)
    assert "no failure was seen (prior: " in advice.basis
    assert advice.loss_then is not None
    assert advice.loss_now is not None
    assert advice.loss_then < advice.loss_now
    first, *_ = goodput.saving_lines(advice)
    assert first.startswith("saving every 10 steps cost 1.0 % of the training; ")
    assert first.endswith(" would have lost least")

    world.exit(1, signal=9)
    world.judged()
    after = goodput.advise(world.state)
    assert after.failures == 1
    assert after.mtbf < advice.mtbf / 100
    world.obey()
    told = world.state.attempts[1].checkpoint_interval
    assert told is not None
    assert told == pytest.approx(after.seconds, rel=0.05)


def told_by(world: World) -> list[float | None]:
    return [
        record.event.order.checkpoint_interval
        for record in world.records
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, o.StartWorkers)
    ]


@pytest.mark.parametrize(("setting", "told"), [(None, FIRST_SECONDS), (90.0, 90.0), (0.0, 0.0)])
def test_workers_are_told(setting: float | None, told: float) -> None:
    world = World(nnodes=2, nproc=1, policy=Policy(checkpoint_interval=setting)).start()
    assert told_by(world) == [told, told]
    job = Job(run="r", runs_dir="/", script="x", python="p", cwd="/")
    order = next(
        record.event.order
        for record in world.records
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, o.StartWorkers)
    )
    environ = worker_environ(job, order, 0, "f", {})
    assert environ["HARNESS_CHECKPOINT_INTERVAL"] == f"{told:g}"


@pytest.mark.parametrize("raw", ["auto", "0", "90", "2.5", 90, 2.5])
def test_a_time_between_saves(raw: object) -> None:
    assert parse(BY_NAME["checkpoint_interval"], raw, "x") == str(raw)


@pytest.mark.parametrize("raw", ["soon", "-1", "nan", "inf", "1e", True, ""])
def test_no_time_between_saves(raw: object) -> None:
    with pytest.raises(UsageError):
        parse(BY_NAME["checkpoint_interval"], raw, "x")
