"""Somebody sets a clock: no deadline passes by it, none moves away, events keep their order."""

import time

import pytest

from harness import events as e
from harness import recovery
from harness.controller.clock import SteadyClock
from tests.replay.world import SECOND, World

HOUR = 3600 * SECOND


def stamp(wall_ns: int, mono_ns: int) -> e.Stamp:
    return e.Stamp(run="r", attempt=0, source="controller", seq=0, wall_ns=wall_ns, mono_ns=mono_ns)


@pytest.mark.parametrize("by", [HOUR, -HOUR, 400 * 24 * HOUR])
def test_a_clock_that_is_set_while_ranks_fail_changes_no_verdict_and_no_wait(by: int) -> None:
    world = World(nnodes=2, nproc=2).start()
    world.step(1)
    world.clock_set[1] = by
    world.step(2)
    before_ns = world.now_ns
    assert world.state.last_ns == before_ns
    world.exit(2, signal=11)
    world.cries(1, 3)
    incident = world.judged()
    assert incident.verdict.first_failing == (2,)
    assert incident.verdict.victims == (1, 3)
    assert world.now_ns - before_ns < 5 * SECOND
    assert before_ns <= incident.verdict.onset_ns <= world.now_ns
    world.obey()
    world.step(3)
    assert world.incident.outcome == "recovered"


def test_a_node_that_is_ahead_from_the_start_carries_nobody_into_the_future() -> None:
    world = World(nnodes=2, nproc=1)
    for node in (0, 1):
        world.join(node)
    world.clock_set[1] = HOUR
    world.obey()
    world.step(1)
    assert world.state.last_ns == world.now_ns
    world.exit(1, signal=9)
    started_ns = world.now_ns
    world.judged()
    assert world.now_ns - started_ns < 5 * SECOND


def test_a_stall_is_suspected_in_time_although_a_clock_was_set() -> None:
    world = World(nnodes=2, nproc=1).start()
    for step in (1, 2, 3):
        world.step(step)
    world.clock_set[0] = world.clock_set[1] = HOUR
    for node in (0, 1):
        world.say(e.PulsesRead(node_rank=node, pulses=()), node)
    at_ns = recovery.next_wake_ns(world.state, world.now_ns)
    assert at_ns is not None
    assert at_ns - world.now_ns < 60 * SECOND


def test_another_agent_of_a_node_brings_its_own_clocks() -> None:
    world = World(nnodes=2, min_nodes=1, nproc=1).start()
    world.step(1)
    world.lose(1)
    world.judged()
    world.obey()
    world.clock_set[1] = -HOUR  # it booted later: another machine
    world.join(1, pid=9)
    world.say(e.PulsesRead(node_rank=1, pulses=()), 1)
    assert world.state.last_ns == world.now_ns


def test_the_controllers_clock_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    before = clock.now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert 0 <= clock.now_ns() - before < HOUR


def test_the_next_controller_goes_on_with_the_clock_of_the_one_before() -> None:
    clock = SteadyClock()
    mono_ns = time.monotonic_ns()
    clock.follow(stamp(5 * HOUR, mono_ns))
    assert 0 <= clock.now_ns() - 5 * HOUR < HOUR, "the wall clock was set forward in between"
    ahead_ns = time.time_ns() + 5 * HOUR
    clock.follow(stamp(ahead_ns, mono_ns - HOUR))
    assert 0 <= clock.now_ns() - ahead_ns < HOUR // 2, "it was set back"
    clock = SteadyClock()
    clock.follow(stamp(time.time_ns() - HOUR, mono_ns + HOUR))
    assert abs(clock.now_ns() - time.time_ns()) < HOUR // 2, "the machine was started anew"
