"""Which generation in memory an attempt goes on from, who keeps copies, and what is written to disk
before it is lost: the controller's side."""

from collections.abc import Mapping, Sequence

import pytest

from harness import events as e
from harness import orders as o
from harness.holdings import Generation, MemorySource
from harness.policy import Policy
from harness.report import card
from tests.replay.world import World

Ranks = Sequence[int]


def hold(
    world: World, node: int, *generations: tuple[int, int, Ranks, Ranks], twins: bool = False
) -> None:
    """`node` tells what it holds: (attempt, step, own, copies). `twins`: all ranks are replicas."""
    held = tuple(
        Generation(
            attempt=attempt,
            step=step,
            own=tuple(own),
            shards=tuple("same" if twins else f"shard{rank}" for rank in own),
            copies=tuple(copies),
        )
        for attempt, step, own, copies in generations
    )
    attempt = len(world.state.attempts) - 1
    world.say(e.MemoryHeld(node_rank=node, attempt=attempt, generations=held), node)


def two_nodes(spares: int = 0, policy: Policy | None = None) -> World:
    world = World(nnodes=2, nproc=1, spares=spares, policy=policy or Policy())
    for node in range(2 + spares):
        world.join(node)
        world.say(e.MemoryServed(node_rank=node, address=f"10.0.0.{node}:7"), node)
    world.obey()
    world.step(9)
    return world


def plans(world: World) -> Mapping[int, o.StartWorkers]:
    """The newest StartWorkers of each node."""
    return {
        node: [order for order in orders if isinstance(order, o.StartWorkers)][-1]
        for node, orders in world.state.orders.items()
        if any(isinstance(order, o.StartWorkers) for order in orders)
    }


def crash(world: World, rank: int = 0, step: int = 0) -> None:
    world.exit(rank, signal=9)
    world.judged()
    world.obey()


def of_attempt(world: World) -> tuple[int, int]:
    assert world.state.attempt is not None
    return world.state.attempt.memory


def test_the_newest_generation_of_all_ranks_is_what_the_next_attempt_goes_on_from() -> None:
    world = two_nodes()
    hold(world, 0, (0, 9, [0], []), (0, 8, [0], [1]))
    hold(world, 1, (0, 8, [1], [0]))
    crash(world)
    assert "next: restart from memory of step 8: at most 1 step done again" in card(
        world.state, world.incident
    )
    assert of_attempt(world) == (0, 8)
    plan = plans(world)[1].memory
    assert plan is not None
    assert (plan.restore_attempt, plan.restore_step, plan.fetch) == (0, 8, ())
    assert (plan.keeper, plan.keeps) == ("10.0.0.0:7", (0,))


def test_a_lost_node_is_made_up_for_by_its_neighbour_and_a_spare() -> None:
    world = two_nodes(spares=1)
    hold(world, 0, (0, 9, [0], []), (0, 8, [0], [1]))
    hold(world, 1, (0, 9, [1], []), (0, 8, [1], [0]))
    world.lose(1)
    world.judged()
    world.obey()
    assert of_attempt(world) == (0, 8)
    plan = plans(world)[2].memory
    assert plan is not None
    assert plan.fetch == (MemorySource(rank=1, address="10.0.0.0:7"),)


def test_without_a_copy_it_is_the_disk() -> None:
    world = two_nodes(spares=1)
    hold(world, 0, (0, 9, [0], []))
    world.lose(1)
    world.judged()
    world.obey()
    assert of_attempt(world) == (-1, -1)


def test_a_newer_checkpoint_wins_and_an_equal_one_does_not() -> None:
    for saved, expected in ((9, (-1, -1)), (8, (0, 8))):
        world = two_nodes()
        world.save(saved)
        hold(world, 0, (0, 8, [0], []))
        hold(world, 1, (0, 8, [1], []))
        crash(world)
        assert of_attempt(world) == expected


def test_what_is_held_is_believed_only_as_long_as_numbers_are_not_in_doubt() -> None:
    world = two_nodes()
    hold(world, 0, (0, 8, [0], []))
    hold(world, 1, (0, 8, [1], []))
    saved = e.CheckpointFile(rank=0, what="loaded", path="ck8", older="ck7")
    world.say(saved, 0)
    world.raises(0, "FloatingPointError", "loss is nan")
    world.exit(0, 1)
    incident = world.judged()
    world.say(e.FilesSetAside(node_rank=0, attempt=0, moved=("ck8.set-aside",)), 0)
    world.obey()
    assert incident.verdict.family == "numeric" or incident.action == "rollback"
    assert of_attempt(world) == (-1, -1)
    assert not world.state.memory


def test_a_generation_that_was_no_use_is_not_tried_twice() -> None:
    world = two_nodes(policy=Policy(same_failure_limit=5))
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    assert of_attempt(world) == (0, 8)
    world.step(9)
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    assert of_attempt(world) == (-1, -1)


def test_what_an_attempt_refused_does_not_come_before_what_it_staged() -> None:
    world = two_nodes()
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    world.step(6)  # it went on from a checkpoint of step 5
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []), (1, 6, [node], []))
    crash(world, rank=1)
    assert of_attempt(world) == (1, 6)


def keep_orders(world: World) -> dict[int, o.KeepMemory]:
    return {
        node: order
        for node, orders in world.state.orders.items()
        for order in orders
        if isinstance(order, o.KeepMemory)
    }


def ended(world: World) -> e.RunEnded | None:
    world.obey()
    return world.state.ended


@pytest.mark.parametrize("why", ["", "No space left on device"])
def test_a_run_that_gives_up_has_its_memory_written_first(why: str) -> None:
    world = two_nodes(policy=Policy(max_restarts=0))
    world.save(5)
    for node in (0, 1):
        hold(world, node, (0, 8, [node], [1 - node]))
    crash(world)
    orders = keep_orders(world)
    assert {node: order.ranks for node, order in orders.items()} == {0: (0,), 1: (1,)}
    assert len({order.token for order in orders.values()}) == 1
    assert world.state.ended is None
    for node in (1, 0):
        path = "ck/step-000008" if node == 0 and not why else ""
        kept = e.MemoryKept(node_rank=node, attempt=0, step=8, path=path, why=why)
        world.say(kept, node)
    end = ended(world)
    assert end is not None
    assert end.exit_code == 1
    text = "\n".join(world.state.notices)
    told = f"could not be saved: {why}" if why else "is saved as ck/step-000008, not certified"
    assert f"memory of step 8 {told}" in text
    mark = world.state.newest_restore_point
    assert mark is not None
    assert mark.step == (5 if why else 8)


def test_nobody_waits_for_ever_for_memory_to_be_written() -> None:
    world = two_nodes(policy=Policy(max_restarts=0))
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    while not ended(world):
        assert world.wake()


def test_what_a_checkpoint_holds_already_is_not_written_again() -> None:
    world = two_nodes(policy=Policy(max_restarts=0))
    world.save(8)
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    assert not keep_orders(world)
    assert ended(world) is not None


def test_replicas_stand_in_for_what_is_lost_with_node_and_neighbour() -> None:
    world = World(nnodes=3, nproc=1, min_nodes=1)
    for node in range(3):
        world.join(node)
    world.obey()
    world.step(9)
    for node in range(3):
        hold(world, node, (0, 8, [node], []), twins=True)
    world.lose(2)
    world.judged()
    world.obey()
    orders = keep_orders(world)
    assert sorted(orders) == [0, 1]
    assert (orders[0].lost, orders[0].twins) == ((2,), (0,))
    for node in (0, 1):
        path = "ck/step-000008" if node == 0 else ""
        world.say(e.MemoryKept(node_rank=node, attempt=0, step=8, path=path), node)
    world.obey()
    assert of_attempt(world) == (-1, -1)
    assert world.state.attempt is not None
    assert world.state.attempt.world_size == 2
    mark = world.state.newest_restore_point
    assert mark is not None
    assert mark.step == 8


def test_a_stop_that_was_asked_for_writes_nothing() -> None:
    world = two_nodes()
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    stop = o.StopRun(why="SIGINT received", signal=2)
    world.say(e.CommandTaken(command=stop, by="launcher", accepted=True, why=""))
    world.obey()
    assert not keep_orders(world)
    assert world.state.ended is not None


def test_the_journal_gives_the_same_state() -> None:
    world = two_nodes()
    for node in (0, 1):
        hold(world, node, (0, 8, [node], []))
    crash(world)
    assert world.replayed() == world.state
