"""Scenarios live: every one is judged as expected, and its journal folds to the same state."""

import pytest

from harness import recovery
from tests.replay.replaying import compare
from tests.replay.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_is_judged(scenario: Scenario) -> None:
    world = scenario.build()
    assert compare(world.state, scenario.expected) == []
    assert world.state.ended is not None
    again = world.replayed()
    assert again == world.state
    assert recovery.plan(again, world.now_ns) == []
