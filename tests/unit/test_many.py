"""Thousands of nodes: they report less often, and that alone raises no suspicion; what is planned
for all of them at once is the same as for a few."""

from dataclasses import replace

import pytest

from harness import events as e
from harness import orders as o
from harness.holdings import Generation, MemorySource
from harness.policy import Policy
from harness.recovery.memory import keepers, memory_plans
from harness.sightings import Pulse
from harness.wire import agent_link
from harness.wire.channel import HEARTBEAT, ack_due, heartbeat_of
from tests.replay.world import SECOND, World


@pytest.mark.parametrize(
    ("nodes", "apart", "heartbeat"),
    [(1, 0.25, HEARTBEAT), (400, 0.25, HEARTBEAT), (2048, 1.024, 1.2288), (16384, 8.192, 5 / 3)],
)
def test_many_nodes_report_less_often_and_none_is_taken_for_lost(
    nodes: int, apart: float, heartbeat: float
) -> None:
    assert Policy().reports_apart(nodes) == apart
    assert heartbeat_of(Policy(), nodes) == pytest.approx(heartbeat)
    # With a report's pause on top, an agent's patience with a silent controller is longer.
    assert (
        ack_due(0.0, 0.0, nodes) + min(Policy().reports_apart(nodes), heartbeat)
        < agent_link._SAY_SECONDS
    )


def test_an_order_stands_in_for_an_acknowledgement_once() -> None:
    apart = ack_due(100.0, 0.0, 2048) - 100.0
    assert ack_due(100.0, 101.0, 2048) == 101.0 + apart
    assert ack_due(100.0, 100.0 + 5 * apart, 2048) == 100.0 + 2 * apart


def looks(world: World) -> int:
    return len(world.state.collections)


def report(world: World, node: int, step: int) -> None:
    pulses = tuple(
        Pulse(rank=rank, step=step, phase="step", heartbeat_ns=1, collectives=10 * step)
        for rank in (world.state.attempts[-1].nodes[node].ranks if step else ())
    )
    world.say(e.PulsesRead(node_rank=node, pulses=pulses), node)


def test_reports_a_second_apart_are_no_stall_and_a_stall_is_seen_all_the_same() -> None:
    world = World(nnodes=4, nproc=2, policy=Policy(pulse_interval=1.0)).start()
    for step in range(1, 12):
        for node in range(4):  # in turn, as thousands do
            world.pass_time(0.25)
            report(world, node, step)
    assert looks(world) == 0
    since_ns = world.now_ns
    for _ in range(2):
        for node in range(4):
            world.pass_time(0.25)
            report(world, node, 0)
    assert looks(world) == 1
    assert world.state.collections[0].ordered_ns - since_ns <= 1.3 * SECOND


def test_a_node_that_has_not_reported_yet_is_waited_for() -> None:
    world = World(nnodes=2, nproc=1, policy=Policy(pulse_interval=1.0)).start()
    for step in range(1, 12):
        world.pass_time(1.0)
        for node in range(2):
            report(world, node, step)
    world.pass_time(1.4)
    assert looks(world) == 0
    report(world, 0, 12)
    report(world, 1, 12)
    assert looks(world) == 0


def test_the_more_ranks_a_look_is_at_the_less_it_asks_of_each() -> None:
    most = []
    for nnodes, nproc in ((4, 2), (16, 8), (160, 8)):
        world = World(nnodes=nnodes, nproc=nproc).start()
        for step in range(1, 4):
            world.pass_time(0.2)
            for node in range(nnodes):
                report(world, node, step)
        for _ in range(12):
            world.pass_time(0.25)
        asked = [order for _, order in world.pending if isinstance(order, o.CollectEvidence)]
        most.append(asked[0].most)
    assert most == [64, 16, 8]


def test_copies_are_kept_by_the_next_node_on_another_host() -> None:
    world = World(nnodes=6, nproc=1).start()
    state, attempt = world.state, world.state.attempts[-1]
    for node, host in enumerate(("a", "a", "b", "b", "c", "c")):
        state.nodes[node] = replace(state.nodes[node], host=host)
    state.memory_addresses |= {node: f"m{node}" for node in (0, 1, 2, 5)}
    assert keepers(state, attempt) == {0: 2, 1: 2, 2: 5, 3: 5, 4: 0, 5: 0}
    plans = memory_plans(state, attempt)
    assert {node: plan.keeper for node, plan in plans.items()} == {
        0: "m2", 1: "m2", 2: "m5", 3: "m5", 4: "m0", 5: "m0",
    }  # fmt: skip
    assert [plans[node].keeps for node in range(6)] == [(4, 5), (), (0, 1), (), (), (2, 3)]


def test_who_lost_its_memory_fetches_it_from_who_has_it() -> None:
    world = World(nnodes=3, nproc=1).start()
    state, attempt = world.state, world.state.attempts[-1]
    attempt.memory = (0, 7)
    state.memory_addresses |= {node: f"m{node}" for node in range(3)}
    held = {0: ((0,), (2,)), 1: ((1,), (0,)), 2: ((), (1,))}
    for node, (own, copies) in held.items():
        kept = e.MemoryHeld(
            node_rank=node,
            attempt=0,
            generations=(Generation(attempt=0, step=7, own=own, copies=copies),),
        )
        state.memory[node] = kept
    fetched = {node: plan.fetch for node, plan in memory_plans(state, attempt).items()}
    assert fetched == {0: (), 1: (), 2: (MemorySource(rank=2, address="m0"),)}
