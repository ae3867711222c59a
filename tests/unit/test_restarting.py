"""A restart because somebody asked for it."""

from harness import events as e
from harness import orders as o
from harness.recovery import accept
from tests.replay.world import World


def asked(world: World) -> tuple[bool, str]:
    command = o.RestartRun(why="asked for by anna")
    accepted, why = accept(world.state, command)
    world.say(e.CommandTaken(command=command, by="cli:anna", accepted=accepted, why=why))
    return accepted, why


def test_all_workers_start_again_and_nothing_counts_as_a_failure() -> None:
    world = World(nproc=2).start()
    for step in range(1, 8):
        world.step(step)
    world.save(5)
    assert asked(world) == (
        True,
        "attempt 0 is stopped; the next one goes on from the checkpoint of step 5:"
        " 2 steps done again",
    )
    world.obey()
    assert [attempt.why for attempt in world.state.attempts] == [
        "first launch",
        "is started again: asked for by anna",
    ]
    assert world.state.incidents == []
    assert world.state.ended is None


def test_it_is_refused_when_it_makes_no_sense() -> None:
    world = World(nproc=2)
    refused = (False, "no rank has been started yet")
    assert accept(world.state, o.RestartRun(why="x")) == refused
    world.start()
    assert asked(world)[0]
    assert accept(world.state, o.RestartRun(why="x"))[0] is False
    other = World(nproc=2).start()
    other.say(
        e.CommandTaken(
            command=o.StopRun(why="x", signal=0), by="cli:anna", accepted=True, why="yes"
        )
    )
    assert accept(other.state, o.RestartRun(why="x")) == (False, "the run is being stopped")
