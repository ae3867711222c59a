"""Stacks on request: the run goes on, everybody is asked once, the answer is shown once."""

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.sightings import RankStack
from tests.replay.world import World


def ask(world: World, **how: object) -> tuple[bool, str]:
    command = o.ShowStacks(request="r1", **how)  # type: ignore[arg-type]
    accepted, why = recovery.accept(world.state, command)
    world.say(e.CommandTaken(command=command, by="test", accepted=accepted, why=why))
    return accepted, why


def given(world: World, kind: type) -> list[tuple[int, o.Order]]:
    return [
        (record.event.node_rank, record.event.order)
        for record in world.records
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, kind)
    ]


def answer(world: World, node: int, *ranks: int) -> None:
    taken = tuple(RankStack(rank=rank, pid=rank, state="S", missing="dark") for rank in ranks)
    event = e.StacksTaken(request="r1", node_rank=node, stacks=taken, seconds=0.1)
    world.say(event, node)


def test_every_node_is_asked_and_the_answer_shown_when_all_have_answered() -> None:
    world = World(nnodes=2, nproc=2).start()
    world.step(1)
    assert ask(world, show_on=0) == (True, "the stacks of ranks 0-3 are taken")
    assert [node for node, _ in given(world, o.TakeStacks)] == [0, 1]
    answer(world, 0, 0, 1)
    assert given(world, o.Notify) == []
    answer(world, 1, 2, 3)
    ((node, notice),) = given(world, o.Notify)
    assert (node, notice.request) == (0, "r1")  # type: ignore[attr-defined]
    assert notice.text.startswith("all 4 ranks cannot be seen")  # type: ignore[attr-defined]
    assert world.state.stack_requests == {}
    assert world.state.stage == "running"
    assert world.state.incidents == []
    world.finish()
    assert world.state.ended is not None
    assert world.state.ended.outcome == "succeeded"


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    world = World(nnodes=2, nproc=2).start()
    ask(world, show_on=0)
    answer(world, 1, 2, 3)
    assert recovery.next_wake_ns(world.state, world.now_ns) is not None
    world.pass_time(11)
    ((_, notice),) = given(world, o.Notify)
    assert notice.text.startswith("all 2 ranks")  # type: ignore[attr-defined]


def test_only_the_nodes_of_the_ranks_are_asked_and_nothing_is_shown_unasked() -> None:
    world = World(nnodes=2, nproc=2).start()
    assert ask(world, ranks=(3,)) == (True, "the stacks of rank 3 are taken")
    assert [node for node, _ in given(world, o.TakeStacks)] == [1]
    answer(world, 1, 3)
    assert given(world, o.Notify) == []
    assert world.state.stack_requests == {}


def test_refusals_are_in_words() -> None:
    world = World(nnodes=1, nproc=2)
    assert ask(world) == (False, "no workers are running (the run is gathering)")
    world = World(nnodes=1, nproc=2).start()
    assert ask(world, ranks=(1, 7)) == (False, "there is no rank 7; the ranks are 0-1")
    assert ask(world)[0]
    assert ask(world) == (False, "request 'r1' is being answered already")
    world.finish()
    assert ask(world) == (False, "the run has ended (succeeded)")
