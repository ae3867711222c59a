"""The ledger closes, and its times are those of the records."""

import pytest

from harness import goodput
from harness.state import RunState
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import SECOND, World


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_books_close(scenario: Scenario) -> None:
    state = scenario.build().state
    books = goodput.ledger(state)
    assert sum(books.parts_ns.values()) == books.wall_ns == state.ended_ns - state.started_ns
    assert min(books.parts_ns.values()) >= 0


def test_an_empty_run_has_empty_books() -> None:
    books = goodput.ledger(RunState())
    assert books.wall_ns == 0
    assert books.goodput is None


def test_times_of_an_incident_and_its_cost() -> None:
    world = World(nproc=2).start()
    for step in range(1, 11):
        world.step(step, seconds=1)
    world.save(8)
    began_ns = world.now_ns
    world.exit(1, signal=11)
    world.now_ns += SECOND // 5
    detected_ns = world.judged().detected_ns
    world.obey()
    world.now_ns += 2 * SECOND
    world.load(8)
    world.step(9, seconds=1)
    first_ns = world.now_ns
    world.step(10, seconds=1)
    world.finish()
    books = goodput.ledger(world.state)
    (times,) = books.incidents
    assert times.lost_steps == 2
    assert times.mttd == pytest.approx((detected_ns - began_ns) / 1e9, abs=0.01)
    assert times.mttr == pytest.approx((first_ns - detected_ns) / 1e9, abs=0.01)
    # Nine steps after the first of attempt 0 took nine seconds, two of ten are done again.
    assert books.parts_ns["lost"] == pytest.approx(1.8 * SECOND, abs=0.05 * SECOND)
    assert books.parts_ns["productive"] == pytest.approx(8.2 * SECOND, abs=0.05 * SECOND)
    assert books.goodput == pytest.approx(books.parts_ns["productive"] / books.wall_ns)


def test_lost_steps_of_a_silent_script_are_not_guessed() -> None:
    world = World(nproc=2).start()
    world.exit(1, signal=9)
    world.judged()
    world.obey()
    world.finish()
    assert world.state.incidents[0].outcome == "recovered"
    assert world.state.incidents[0].lost_steps is None
