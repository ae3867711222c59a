"""A checkpoint that somebody asks for: all ranks save at one step, and the run goes on."""

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.saving import NOTHING_SAVES, Saving, saving
from tests.replay.world import World


def running(*, nnodes: int = 2, heeds: bool = True) -> World:
    world = World(nnodes=nnodes, nproc=2)
    world.heeds = heeds
    world.start()
    world.step(1)
    return world


def ask(world: World, request: str = "mine") -> tuple[bool, str]:
    command = o.SaveNow(request=request)
    accepted, why = recovery.accept(world.state, command)
    world.say(e.CommandTaken(command=command, by="cli", accepted=accepted, why=why))
    return accepted, why


def steps(world: World, *, agreed: bool) -> list[tuple[int, int]]:
    """(node, step) of the orders to save at a step."""
    return [
        (record.event.node_rank, record.event.order.step)
        for record in world.records
        if isinstance(record.event, e.OrderGiven)
        and isinstance(record.event.order, o.SaveAtStep)
        and record.event.order.agreed == agreed
    ]


def now(world: World) -> Saving:
    found = saving(world.state)
    assert found is not None
    return found


def test_all_ranks_save_at_a_step_that_none_has_passed_and_go_on() -> None:
    world = running()
    assert saving(world.state) is None
    assert ask(world) == (True, "the ranks are asked for a step to save at")
    assert steps(world, agreed=False) == [(0, -1), (1, -1)], "how far are they?"
    assert now(world).stage == "asking"
    world.obey(o.SaveAtStep)
    assert steps(world, agreed=False)[2:] == [(0, 3), (1, 3)]
    assert steps(world, agreed=True) == [(0, 3), (1, 3)]
    assert (now(world).stage, now(world).step) == ("waiting", 3)
    world.step(3)
    world.say(e.CheckpointSaved(rank=0, step=3, path="ck/3", seconds=0.1), 0)
    assert now(world).stage == "waiting", "one rank alone makes no checkpoint"
    world.save(3)
    assert (now(world).stage, now(world).path) == ("saved", "ck/3")
    world.step(4)
    assert world.state.stage == "running"
    assert not [order for _, order in world.pending if isinstance(order, o.StopWorkers)]
    world.finish()
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 0
    assert now(world).stage == "saved"


def test_a_later_step_is_proposed_until_nobody_has_passed_it() -> None:
    world = running()
    world.missed = 2
    ask(world)
    world.obey(o.SaveAtStep)
    proposed = [step for node, step in steps(world, agreed=False) if node == 0]
    assert proposed == [-1, 3, 8 + 16]
    assert steps(world, agreed=True) == [(0, 24), (1, 24)]


def test_a_checkpoint_of_an_earlier_attempt_that_is_saved_again_counts_when_all_have_it() -> None:
    world = running(nnodes=1)
    world.step(3)
    world.save(3)
    world.exit(1, signal=9)
    world.judged()
    world.obey()
    world.step(1)
    ask(world)
    world.obey(o.SaveAtStep)
    assert now(world).step == 3
    world.say(e.CheckpointSaved(rank=0, step=3, path="ck/3", seconds=0.1), 0)
    assert now(world).stage == "waiting"
    world.save(3)
    assert now(world).stage == "saved"


def test_a_script_that_cannot_save_is_said_to_be_one() -> None:
    world = running(heeds=False)
    ask(world)
    world.obey(o.SaveAtStep)
    assert [step for _, step in steps(world, agreed=False)] == [-1, -1], "nobody waits anywhere"
    assert (now(world).stage, now(world).words) == ("failed", NOTHING_SAVES)
    world.heeds = True
    world.step(2)
    assert ask(world, "another")[0]
    world.obey(o.SaveAtStep)
    assert now(world).step == 4


def test_a_second_request_waits_for_the_first() -> None:
    world = running()
    ask(world)
    world.obey(o.SaveAtStep)
    accepted, why = ask(world, "another")
    assert not accepted
    assert "all ranks save at step 3" in why
    world.step(3)
    world.save(3)
    assert ask(world, "another")[0]
    world.obey(o.SaveAtStep)
    assert steps(world, agreed=True)[2:] == [(0, 5), (1, 5)]


def test_a_save_that_fails_is_told_in_the_words_of_the_rank() -> None:
    world = running()
    ask(world)
    world.obey(o.SaveAtStep)
    failed = e.CheckpointFailed(rank=2, step=3, path="ck/3", why="No space left on device")
    world.say(failed, 1)
    assert now(world).words == "the checkpoint of step 3 was not saved: No space left on device"


def test_nothing_comes_of_it_when_the_attempt_ends() -> None:
    world = running()
    ask(world)
    world.exit(3, signal=9)
    world.judged()
    world.obey()
    assert len(world.state.attempts) == 2
    assert now(world).words == "attempt 0 ended before all ranks had saved"


def test_a_preemption_does_not_leave_ranks_waiting_at_the_proposed_step() -> None:
    world = running()
    ask(world)
    world.obey(o.SaveAtStep)
    stop = o.Preempt(why="SIGTERM received")
    world.say(e.CommandTaken(command=stop, by="launcher", accepted=True, why=""))
    world.obey(o.SaveAtStep)
    assert steps(world, agreed=True) == [(0, 3), (1, 3)]
    assert ask(world, "late") == (False, "the run is being stopped")


def test_nobody_is_asked_while_no_workers_run() -> None:
    world = World(nnodes=2)
    world.join(0)
    assert ask(world) == (False, "no workers are running (the run is gathering)")


def test_a_restarted_controller_goes_on_with_the_agreement() -> None:
    world = running()
    ask(world)
    world.obey(o.SaveAtStep)
    told = [
        at
        for at, record in enumerate(world.records)
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, o.SaveAtStep)
    ]
    for at in told:
        later = World.resumed(world, at + 1)
        later.heeds = True
        later.settle()
        given = steps(later, agreed=False) + steps(later, agreed=True)
        whole = steps(world, agreed=False) + steps(world, agreed=True)
        assert set(given) <= set(whole)
        assert len(given) % 2 == 0, "both nodes are told"
