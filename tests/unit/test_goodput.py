"""The ledger closes, and what it says is what happened."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import events as e
from harness import goodput
from harness.incidents import Incident, Verdict
from harness.state import RunState
from tests.replay.closing import closes
from tests.replay.replaying import read, replay
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import SECOND, World

RECORDINGS = Path(__file__).parents[1] / "replay" / "recordings"


def parts_of(world: World) -> dict[str, float]:
    """Seconds of the mean rank; parts of nothing are left out."""
    closes(world.state)
    books = goodput.ledger(world.state)
    parts = {part: ns / SECOND / books.ranks for part, ns in books.parts_ns.items()}
    return {part: round(seconds, 1) for part, seconds in parts.items() if seconds >= 0.05}


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


def test_a_failure_costs_what_it_costs() -> None:
    world = World(nproc=2).start()
    world.pass_time(3)
    for step in range(1, 11):
        world.step(step, seconds=1)
    world.save(8)
    world.pass_time(0.5)
    began_ns = world.now_ns
    world.exit(1, signal=11)
    world.now_ns += SECOND // 5
    detected_ns = world.judged().detected_ns
    world.obey()
    world.now_ns += 2 * SECOND
    world.load(8)
    for step in (9, 10, 11, 12):
        world.step(step, seconds=1)
    new_ns = world.now_ns - SECOND
    world.finish()
    (times,) = goodput.incident_times(world.state)
    assert times.lost_steps == 2
    assert times.mttd == pytest.approx((detected_ns - began_ns) / 1e9, abs=0.01)
    assert times.mttr == pytest.approx((new_ns - detected_ns) / 1e9, abs=0.01)
    assert times.split["recompute"] == pytest.approx(2, abs=0.01)
    assert times.split["step"] == pytest.approx(1, abs=0.01)
    assert times.split["init"] == pytest.approx(2, abs=0.01)
    parts = parts_of(world)
    # Steps 1 to 10, less 0.1 s of a save that was told after them, then 11 and 12.
    assert parts["useful"] == pytest.approx(12 - 0.1, abs=0.11)
    # Two steps done again, and the half second that was cut off.
    assert parts["recompute"] == pytest.approx(2.5, abs=0.11)
    assert parts["init"] == pytest.approx(5, abs=0.11)
    assert parts["checkpoint"] == 0.1
    books = goodput.ledger(world.state)
    assert books.ettr == pytest.approx(books.parts_ns["useful"] / books.total_ns)
    assert goodput.ettr(world.state, world.now_ns) == pytest.approx(books.ettr, abs=0.02)


def test_lost_steps_of_a_silent_script_are_not_guessed() -> None:
    world = World(nproc=2).start()
    world.exit(1, signal=9)
    world.judged()
    world.obey()
    world.finish()
    assert world.state.incidents[0].outcome == "recovered"
    assert world.state.incidents[0].lost_steps is None


def test_a_save_within_its_phase_is_counted_once() -> None:
    world = World(nproc=1).start()
    world.step(1, seconds=1)
    world.step(2, seconds=1)
    world.phase(0, "checkpoint")
    world.now_ns += 2 * SECOND
    world.phase(0, "step")
    world.say(e.CheckpointSaved(rank=0, step=2, path="ck", seconds=2.0), 0)
    world.step(3, seconds=1)
    assert parts_of(world) == {"useful": 3.0, "checkpoint": 2.0}


def test_saves_in_the_background_are_told_after_the_next_ones_phase() -> None:
    world = World(nproc=1).start()
    world.step(1, seconds=1)
    for step in (2, 3):
        world.step(step, seconds=1)
        world.phase(0, "checkpoint")
        world.now_ns += SECOND
        world.phase(0, "step")
    for step in (2, 3):
        world.say(e.CheckpointSaved(rank=0, step=step, path=f"ck{step}", seconds=1.0), 0)
    world.step(4, seconds=1)
    assert parts_of(world) == {"useful": 4.0, "checkpoint": 2.0}


def test_a_save_told_late_comes_out_of_the_steps_it_held_up() -> None:
    world = World(nproc=1).start()
    for step in range(1, 7):
        world.step(step, seconds=1)
    world.say(e.CheckpointSaved(rank=0, step=2, path="ck", seconds=0.5), 0)
    assert parts_of(world) == {"useful": 5.5, "checkpoint": 0.5}


def test_a_load_that_is_told_is_no_start_up() -> None:
    world = World(nproc=1).start()
    world.pass_time(5)
    world.say(e.CheckpointLoaded(rank=0, step=4, path="ck", seconds=3.0), 0)
    world.phase(0, "step")
    world.step(5, seconds=1)
    assert parts_of(world) == {"init": 2.0, "load": 3.0, "useful": 1.0}


def test_a_wait_that_passes_is_a_stall() -> None:
    world = World(nproc=2).start()
    world.step(1, seconds=1)
    world.step(2, seconds=1)
    world.now_ns += 2 * SECOND
    look = e.StallLooked(collection=0, why="rank 1 is waited for", again_ns=0, ranks=(1,))
    world.say(look, plan=False)
    world.now_ns += SECOND
    assert parts_of(world)["useful"] == 2.0
    world.step(3, seconds=1)
    world.step(4, seconds=1)
    assert parts_of(world) == {"useful": 3.0, "stall": 4.0}


def test_what_comes_after_the_work_is_done_is_no_work() -> None:
    world = World(nproc=1).start()
    world.phase(0, "step")
    world.step(1, seconds=1)
    for phase in ("init", "teardown", "init"):
        world.phase(0, phase)
        world.now_ns += SECOND
    look = e.StallLooked(collection=0, why="it cannot end", again_ns=0, ranks=(0,))
    world.say(look, plan=False)
    world.now_ns += SECOND
    world.finish()
    assert parts_of(world) == {"useful": 2.0, "stop": 3.0}


def test_operations_are_useful_where_no_steps_are_counted() -> None:
    world = World(nproc=1).start()
    pulse = e.Pulse(rank=0, step=0, phase="init", heartbeat_ns=1)
    for count in range(5):
        world.now_ns += SECOND
        world.say(e.PulsesRead(node_rank=0, pulses=(replace(pulse, collectives=count),)), 0)
    assert parts_of(world) == {"init": 2.0, "useful": 3.0}
    world.step(1, seconds=1)
    world.step(2, seconds=1)
    assert parts_of(world) == {"init": 5.0, "useful": 2.0}


def test_a_known_straggler_costs_its_victims_a_share() -> None:
    world = World(nproc=2).start()
    world.step(1, seconds=1)
    onset_ns = world.now_ns
    for step in range(2, 6):
        world.step(step, seconds=1)
    verdict = Verdict(
        verdict="straggler",
        first_failing=(1,),
        victims=(0,),
        innocent=(),
        cause="",
        reason="",
        confidence="likely",
        onset_ns=onset_ns,
        attempt=0,
        step=5,
        signature="straggler",
        wait_share=0.5,
    )
    incident = Incident(
        id=1, verdict=verdict, action="report", action_reason="", detected_ns=world.now_ns
    )
    world.say(e.IncidentOpened(incident=incident), plan=False)
    for step in range(6, 10):
        world.step(step, seconds=1)
    # Half of eight seconds of one of two ranks.
    assert parts_of(world) == {"useful": 7.0, "straggler": 2.0}


def test_a_clock_that_jumps_books_no_more_than_there_was() -> None:
    world = World(nproc=2).start()
    world.step(1, seconds=1)
    ahead = e.Pulse(
        rank=0, step=2, phase="step", heartbeat_ns=1, step_ns=world.now_ns + 3600 * SECOND
    )
    world.say(e.PulsesRead(node_rank=0, pulses=(ahead,)), 0)
    world.step(3, seconds=1)
    world.finish()
    closes(world.state)
