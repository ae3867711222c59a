"""Preemption: all ranks stop at one step, whenever they hear of it; what is not waited for."""

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.policy import Policy
from tests.replay.world import SECOND, World


def running(*, nnodes: int = 2, heeds: bool = True, grace: float = 30.0) -> World:
    world = World(nnodes=nnodes, nproc=2, policy=Policy(preempt_grace=grace))
    world.heeds = heeds
    world.start()
    world.step(1)
    return world


def preempt(world: World) -> None:
    command = o.Preempt(why="SIGTERM received")
    accepted, why = recovery.accept(world.state, command)
    world.say(e.CommandTaken(command=command, by="launcher", accepted=accepted, why=why))


def steps(world: World, *, agreed: bool) -> list[tuple[int, int]]:
    """(node, step) of the orders to stop at a step."""
    return [
        (record.event.node_rank, record.event.order.step)
        for record in world.records
        if isinstance(record.event, e.OrderGiven)
        and isinstance(record.event.order, o.StopAtStep)
        and record.event.order.agreed == agreed
    ]


def ended(world: World) -> tuple[str, int, str]:
    end = world.state.ended
    assert end is not None
    return end.outcome, end.exit_code, end.reason


def test_all_ranks_stop_at_a_step_that_none_has_passed() -> None:
    world = running()
    preempt(world)
    assert steps(world, agreed=False) == [(0, 3), (1, 3)]
    world.obey(o.StopAtStep)
    assert steps(world, agreed=True) == [(0, 3), (1, 3)]
    world.step(3)
    world.save(3)
    assert world.state.ended is None
    world.finish()
    assert ended(world) == ("stopped", 84, "preempted, checkpoint of step 3 saved")


def test_a_later_step_is_proposed_until_nobody_has_passed_it() -> None:
    world = running()
    world.missed = 2
    preempt(world)
    world.obey(o.StopAtStep)
    proposed = [step for node, step in steps(world, agreed=False) if node == 0]
    assert proposed == [3, 8 + 16]
    assert steps(world, agreed=True) == [(0, 24), (1, 24)]


def test_ranks_that_have_saved_get_the_grace_of_a_stop_to_leave() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    world.step(3)
    world.save(3)
    world.pass_time(world.policy.stop_grace - 0.1)
    assert not [order for _, order in world.pending if isinstance(order, o.StopWorkers)]
    assert world.wake()
    world.obey()
    assert ended(world)[1] == 84


def test_a_script_that_never_asks_is_stopped_as_before() -> None:
    world = running(heeds=False)
    preempt(world)
    world.obey(o.StopAtStep)
    assert not steps(world, agreed=True)
    assert {type(order) for _, order in world.pending} == {o.StopWorkers}
    world.obey()
    assert ended(world) == ("stopped", 143, "SIGTERM received")


def test_a_save_that_takes_too_long_is_not_waited_for() -> None:
    world = running(grace=5.0)
    preempt(world)
    world.obey(o.StopAtStep)
    preempted_ns = world.state.preempt_ns
    assert world.wake()
    assert world.now_ns == preempted_ns + 5 * SECOND
    world.obey()
    assert ended(world) == ("stopped", 143, "preempted, but not every rank had saved after 5 s")


def test_a_second_signal_hurries() -> None:
    world = running()
    preempt(world)
    stop = o.StopRun(why="the launcher was told to stop", signal=15)
    world.say(e.CommandTaken(command=stop, by="launcher", accepted=True, why=""))
    world.obey()
    assert ended(world) == ("stopped", 143, "the launcher was told to stop")


def test_a_rank_that_fails_before_it_has_saved_ends_the_waiting() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    world.exit(3, signal=9)
    world.obey()
    assert ended(world)[1:] == (143, "preempted, but rank 3 failed before all had saved")
    assert not world.state.incidents


def test_a_rank_that_fails_after_it_has_saved_costs_nothing() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    world.step(3)
    world.say(e.CheckpointSaved(rank=3, step=3, path="ck/3", seconds=0.1), 1)
    world.exit(3, 1)
    assert world.state.ended is None
    world.save(3)
    world.finish()
    assert ended(world)[1] == 84


def test_a_script_that_tells_of_no_checkpoint_but_leaves_when_asked_is_preempted() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    world.step(3)
    world.finish()
    assert ended(world)[:2] == ("stopped", 84)
    assert "after step 3; it told of no checkpoint" in ended(world)[2]


def test_training_that_is_done_before_it_comes_to_the_step_has_succeeded() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    world.step(2)
    world.finish()
    assert ended(world)[:2] == ("succeeded", 0)


def test_a_run_without_workers_is_preempted_at_once() -> None:
    world = World(nnodes=2)
    world.join(0)
    preempt(world)
    assert ended(world)[1] == 143


def test_a_restarted_controller_goes_on_with_the_agreement() -> None:
    world = running()
    preempt(world)
    world.obey(o.StopAtStep)
    told = [
        at
        for at, record in enumerate(world.records)
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, o.StopAtStep)
    ]
    for at in told:
        later = World.resumed(world, at + 1)
        later.settle()
        given = steps(later, agreed=False) + steps(later, agreed=True)
        whole = steps(world, agreed=False) + steps(world, agreed=True)
        assert sorted(given) in (sorted(whole), sorted(whole[:2]))
