"""Runs that lose nodes and get others: how many go on, who waits for whom, when it grows back."""

import pytest

from harness import events as e
from harness import orders as o
from harness.policy import Policy
from tests.replay.world import SECOND, World

POLICY = Policy(rendezvous_timeout=600, last_call=30)


def elastic(least: int, most: int, *, spares: int = 0, grow: bool = True) -> World:
    return World(nnodes=most, min_nodes=least, spares=spares, grow=grow, nproc=2, policy=POLICY)


def attempt_nodes(world: World) -> list[int]:
    assert world.state.attempt is not None
    return list(world.state.attempt.nodes)


def said(world: World) -> str:
    return "\n".join(world.state.notices)


def starts(world: World, attempt: int) -> list[o.StartWorkers]:
    orders = (r.event.order for r in world.records if isinstance(r.event, e.OrderGiven))
    return [x for x in orders if isinstance(x, o.StartWorkers) and x.attempt == attempt]


def test_with_the_most_nodes_it_begins_at_once() -> None:
    world = elastic(1, 3)
    for node in (0, 2, 1):
        assert not world.pending
        world.join(node)
    assert [type(order) for _, order in world.pending] == [o.HostStore]


def test_with_the_least_it_waits_for_the_last_call_only() -> None:
    world = elastic(2, 4)
    world.join(0)
    world.pass_time(100)
    world.join(3)
    joined_ns = world.now_ns
    world.pass_time(29)
    assert not world.pending
    assert world.wake()
    assert world.now_ns == joined_ns + 30 * SECOND
    world.obey()
    assert attempt_nodes(world) == [0, 3]
    assert [(s.node_rank, s.first_rank, s.nnodes) for s in starts(world, 0)] == [
        (0, 0, 2),
        (1, 2, 2),
    ]


def test_nothing_begins_without_the_head() -> None:
    world = elastic(1, 2)
    world.join(1)
    world.pass_time(60)
    assert not world.pending
    world.pass_time(600)
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 82


def lose_one(world: World, node: int) -> World:
    world.start()
    world.step(1)
    world.lose(node)
    world.judged()
    world.obey()
    return world


def test_a_lost_node_shrinks_the_world_and_the_card_says_so() -> None:
    world = lose_one(elastic(2, 3), 1)
    assert world.incident.action == "restart"
    assert "goes on with 2 nodes and 4 ranks instead of 6" in world.incident.action_reason
    assert attempt_nodes(world) == [0, 2]
    assert [(s.node_rank, s.first_rank, s.world_size, s.nnodes) for s in starts(world, 1)] == [
        (0, 0, 4, 2),
        (1, 2, 4, 2),
    ]
    world.step(2)
    assert world.incident.outcome == "recovered"
    world.finish()
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 0


def test_too_few_wait_for_another_and_say_so() -> None:
    world = lose_one(elastic(2, 2), 1)
    assert world.state.stage == "gathering"
    assert "waits up to 600 s for another node: 1 of at least 2 are here" in said(world)
    world.pass_time(500)
    world.join(1, pid=77)
    world.obey()
    assert attempt_nodes(world) == [0, 1]
    assert [s.node_rank for s in starts(world, 1)] == [0, 1]


def test_the_wait_for_another_node_ends() -> None:
    world = lose_one(elastic(2, 2), 1)
    while world.state.ended is None:
        assert world.wake()
    assert world.state.ended.exit_code == 82
    assert world.state.ended.reason == "only 1 of at least 2 nodes were here within 600 s"
    assert world.incident.outcome == "failed"


def test_a_stop_ends_the_wait_for_another_node() -> None:
    world = lose_one(elastic(2, 2), 1)
    stop = o.StopRun(why="asked to", signal=2)
    world.say(e.CommandTaken(command=stop, by="test", accepted=True, why=""))
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 130


def test_the_head_cannot_be_lost() -> None:
    world = elastic(1, 3).start()
    world.step(1)
    world.lose(0)
    world.judged()
    assert (world.incident.action, world.incident.exit_code) == ("stop", 82)
    assert world.incident.action_reason.endswith(
        "node 0 is lost, and the run's controller and store with it; "
        "run again, and training goes on from its last checkpoint"
    )


def test_a_node_lost_while_the_rest_is_stopped_is_left_behind_too() -> None:
    world = elastic(1, 3).start()
    world.step(1)
    world.exit(0, signal=9)
    world.judged()
    world.lose(2)
    world.obey()
    assert attempt_nodes(world) == [0, 1]


def test_a_node_lost_before_the_attempt_starts_is_left_behind() -> None:
    world = elastic(1, 2)
    for node in (0, 1):
        world.join(node)
    world.lose(1)
    world.obey()
    assert attempt_nodes(world) == [0]


def shrunk_and_joined(world: World) -> World:
    lose_one(world, 1)
    world.step(2)
    world.save(2)
    world.pass_time(1)
    world.join(1, pid=99)
    return world


def test_it_grows_back_after_the_next_checkpoint_of_all_ranks() -> None:
    world = shrunk_and_joined(elastic(1, 2))
    assert "node 1 joined while attempt 1 runs on 1 node; it takes part after" in said(world)
    world.step(3)
    assert len(world.state.attempts) == 2
    world.say(e.CheckpointSaved(rank=0, step=3, path="ck/3", seconds=0.1), 0)
    assert not world.pending or len(world.state.attempts) == 2
    world.save(3)
    assert "the run grows to 2 nodes with node 1, from the checkpoint of step 3" in said(world)
    world.obey()
    assert attempt_nodes(world) == [0, 1]
    assert world.state.attempts[-1].why.startswith("grows to 2 nodes")
    assert len(world.state.incidents) == 1


def test_growing_takes_nothing_from_the_budget_of_restarts() -> None:
    policy = Policy(max_restarts=2)
    world = shrunk_and_joined(World(nnodes=2, min_nodes=1, nproc=2, policy=policy))
    world.save(3)
    world.obey()
    world.step(4)
    world.exit(0, signal=9)
    assert world.judged().action == "restart"


def test_growing_can_be_forbidden() -> None:
    world = shrunk_and_joined(elastic(1, 2, grow=False))
    world.save(3)
    world.obey()
    assert len(world.state.attempts) == 2
    world.exit(0, signal=9)
    world.judged()
    world.obey()
    assert attempt_nodes(world) == [0, 1], "at the next attempt it takes part"


def test_a_run_that_finishes_while_it_is_stopped_to_grow_has_succeeded() -> None:
    world = shrunk_and_joined(elastic(1, 2))
    world.save(3)
    world.exit(0, 0)
    world.exit(1, 0)
    world.obey()
    assert world.state.ended is not None
    assert (world.state.ended.outcome, len(world.state.attempts)) == ("succeeded", 2)


def test_a_spare_waits_and_takes_the_place_of_a_lost_node() -> None:
    world = World(nnodes=2, spares=1, nproc=2, policy=POLICY)
    for node in range(3):
        world.join(node)
    world.obey()
    assert attempt_nodes(world) == [0, 1]
    world.step(1)
    world.lose(1)
    world.judged()
    reason = world.incident.action_reason
    assert "goes on with 2 nodes and 4 ranks, node 2 comes in" in reason
    world.obey()
    assert attempt_nodes(world) == [0, 2]
    world.join(1, pid=88)
    world.step(2)
    assert "joined" not in said(world), "the run has all the nodes it wants"


def test_a_lost_spare_is_nobodys_trouble() -> None:
    world = World(nnodes=2, spares=1, nproc=2, policy=POLICY)
    for node in range(3):
        world.join(node)
    world.obey()
    world.lose(2)
    world.step(1)
    assert not world.state.incidents


@pytest.mark.parametrize("saved_by", [1, 2])
def test_a_checkpoint_counts_by_the_ranks_of_its_own_attempt(saved_by: int) -> None:
    world = elastic(1, 2).start()
    world.step(1)
    for rank in range(saved_by):
        world.say(e.CheckpointSaved(rank=rank, step=1, path="ck/1", seconds=0.1), 0)
    world.lose(1)
    world.judged()
    world.obey()
    assert world.state.attempts[-1].world_size == 2
    assert world.state.newest_restore_point is None
