"""A run is judged again as it was judged, also where its controller was late."""

import pytest

from harness import events as e
from harness import orders as o
from harness.recovery import DECIDED, replay
from harness.state import RunState
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import World
from tests.unit.test_hang import away, go_on, stalled, verdict_within, waiting


def decisions(state: RunState) -> list[tuple[object, ...]]:
    """What must come out alike, and when."""
    looks = [(c.index, c.suspicion, c.ordered_ns) for c in state.collections]
    incidents = [
        (i.id, i.verdict.verdict, i.verdict.first_failing, i.action, i.detected_ns, i.outcome)
        for i in state.incidents
    ]
    return [*looks, *incidents]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_scenario_is_judged_again_alike(scenario: Scenario) -> None:
    world = scenario.build()
    assert decisions(replay(world.records)) == decisions(world.state)


def hung_under_load() -> World:
    """Its controller sleeps through three deadlines, and each time has progress before it wakes."""
    world = stalled(waiting(), waiting(), away())
    for step in range(6, 9):
        world.step(step, seconds=2.5)
    assert world.state.collections == []
    assert verdict_within(world, 20) is not None
    return world


def test_looks_that_a_late_controller_never_made_are_not_made_again() -> None:
    world = hung_under_load()
    assert len(world.state.collections) > 1
    assert decisions(replay(world.records)) == decisions(world.state)


def test_without_decisions_the_core_is_asked_at_once() -> None:
    """A recording of what happened alone: every deadline is kept."""
    world = hung_under_load()
    facts = [record for record in world.records if not isinstance(record.event, DECIDED)]
    early = replay(facts).collections[0]
    assert early.ordered_ns < world.state.collections[0].ordered_ns


def test_evidence_is_for_the_round_that_takes_the_place_of_its_own() -> None:
    """Then, one look more was made, before the ranks went on."""
    world = stalled(waiting(), waiting(), away())
    world.wake()
    world.obey(o.CollectEvidence)
    of_first_look = len(world.records)
    world.step(6, seconds=0.2)
    go_on(world, 60, until=lambda: bool(world.state.incidents))
    (then,) = world.state.incidents
    first = next(
        at for at, r in enumerate(world.records)
        if isinstance(r.event, e.OrderGiven) and isinstance(r.event.order, o.CollectEvidence)
    )  # fmt: skip
    (now,) = replay(world.records[:first] + world.records[of_first_look:]).incidents
    assert (now.verdict.verdict, now.verdict.first_failing) == (
        then.verdict.verdict,
        then.verdict.first_failing,
    )
