"""The ledger closes, and what it says is what happened."""

from pathlib import Path

import pytest

from harness import goodput
from harness.state import RunState
from tests.replay.replaying import read, replay
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import SECOND, World

RECORDINGS = Path(__file__).parents[1] / "replay" / "recordings"


def parts_of(world: World) -> dict[str, float]:
    """Seconds of all ranks; parts of nothing are left out."""
    return {
        part: round(ns / SECOND, 2)
        for part, ns in goodput.ledger(world.state).parts_ns.items()
        if ns > SECOND / 100
    }


def closes(state: RunState) -> None:
    books = goodput.ledger(state)
    assert min(books.parts_ns.values()) >= 0
    assert sum(books.parts_ns.values()) == books.total_ns
    if len({attempt.world_size for attempt in state.attempts}) == 1:
        assert books.total_ns == books.wall_ns * books.ranks
    for times in goodput.incident_times(state):
        if times.mttr is not None:
            split = [seconds for seconds in times.split.values() if seconds is not None]
            assert sum(split) == pytest.approx(times.mttr, abs=1e-6)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_books_close(scenario: Scenario) -> None:
    closes(scenario.build().state)


@pytest.mark.parametrize(
    "file",
    sorted(RECORDINGS.glob("*/*/events.jsonl")),
    ids=lambda file: f"{file.parent.parent.name}/{file.parent.name}",
)
def test_the_books_of_recordings_close(file: Path) -> None:
    closes(replay(read(file)))


def test_an_empty_run_has_empty_books() -> None:
    books = goodput.ledger(RunState())
    assert books.total_ns == 0
    assert books.ettr is None
