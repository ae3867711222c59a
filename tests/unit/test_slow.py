"""Stragglers and pauses: named when they cost, and nobody is named for healthy unevenness."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import events as e
from harness.incidents import Verdict
from tests.replay.timeline import Timeline, steps
from tests.replay.world import World


def said(world: World) -> list[tuple[str, tuple[int, ...]]]:
    return [(i.verdict.verdict, i.verdict.first_failing) for i in world.state.incidents]


def verdict(world: World) -> Verdict:
    assert len(world.state.incidents) == 1, said(world)
    return world.state.incidents[0].verdict


def test_late_from_the_start() -> None:
    world = World().start()
    steps(world, 30, lambda rank, step: 0.26 if rank == 1 else 0.01)
    found = verdict(world)
    assert (found.verdict, found.first_failing, found.victims) == ("straggler", (1,), (0, 2, 3))
    assert "0.25 s after the others, from the start" in found.cause
    assert world.incident.action == "report"


def test_late_from_a_step_on() -> None:
    world = World().start()
    steps(world, 60, lambda rank, step: 0.35 if rank == 3 and step >= 20 else 0.05)
    found = verdict(world)
    assert (found.verdict, found.first_failing) == ("straggler", (3,))
    assert found.collective is not None
    assert found.collective.seq_id == 21
    assert "since all_reduce #21" in found.cause


def test_one_of_two() -> None:
    world = World(nproc=2).start()
    steps(world, 40, lambda rank, step: 0.3 if rank == 0 else 0.1)
    assert verdict(world).first_failing == (0,)


def test_a_slow_node_is_all_its_ranks() -> None:
    world = World(nnodes=3, nproc=2).start()
    beat(world)
    steps(world, 40, lambda rank, step: 1.4 if rank in (2, 3) else 0.5)
    assert verdict(world).first_failing == (2, 3)


@pytest.mark.parametrize("others", [0.001, 0.1])
def test_late_in_the_first_of_many_collectives_of_a_step(others: float) -> None:
    world = World().start()
    line = Timeline(world=world, groups={"0": (0, 1, 2, 3)})
    for _ in range(30):
        for rank in range(4):
            line.compute(rank, 0.4 if rank == 2 else others)
        for _ in range(6):
            line.meet("0")
        line.report()
    assert verdict(world).first_failing == (2,)


@pytest.mark.parametrize(("nodes", "ranks"), [(4, 1), (3, 1), (2, 2), (1, 4)])
def test_late_from_a_step_on_where_the_others_have_little_to_do(nodes: int, ranks: int) -> None:
    """Between the update and the sum of the losses."""
    world = World(nnodes=nodes, nproc=ranks, one_host=True).start()
    after_update(world, 120, lambda rank, step: 0.1 if rank == 2 and step >= 30 else 0.0)
    found = verdict(world)
    assert (found.verdict, found.first_failing) == ("straggler", (2,))
    assert "comes to all_reduce on group_0 0.1 s after the others, since all_reduce #62" in (
        found.cause
    )


def test_what_interrupts_it_does_not_make_it_usual() -> None:
    """A busy neighbour, for ten steps."""
    world = World().start()
    noise = random.Random(7)

    def seconds(rank: int, step: int) -> float:
        late = 0.1 if rank == 2 and step >= 30 else 0.0
        return late + (noise.uniform(0, 0.4) if 38 <= step < 48 else 0.0)

    after_update(world, 160, seconds)
    assert verdict(world).first_failing == (2,)


def test_fast_steps_add_up() -> None:
    world = World().start()
    steps(world, 400, lambda rank, step: 0.04 if rank == 2 else 0.02)
    assert verdict(world).first_failing == (2,)


def test_whoever_is_held_up_in_another_group_is_not_blamed() -> None:
    """Rank 0 is slow; its tensor-parallel partner comes late to its own data-parallel group."""
    world = World().start()
    line = Timeline(
        world=world, groups={"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    )
    for _ in range(40):
        for rank in range(4):
            line.compute(rank, 0.4 if rank == 0 else 0.1)
        for group in ("tp0", "tp1", "dp0", "dp1"):
            line.meet(group)
        line.report()
    assert {ranks for _, ranks in said(world)} == {(0,)}


def after_update(world: World, count: int, seconds: Callable[[int, int], float]) -> None:
    """`count` steps: all compute and add up gradients, and each rank takes 5 ms and
    `seconds(rank, step)` before the losses are added up."""
    everybody = tuple(range(world.nnodes * world.nproc))
    line = Timeline(world=world, groups={"0": everybody})
    for step in range(count):
        for rank in everybody:
            line.compute(rank, 0.05)
        line.meet("0", "all_reduce 4192 float")
        for rank in everybody:
            line.compute(rank, 0.005 + seconds(rank, step))
        line.meet("0", "all_reduce 1 float")
        line.report()
    line.report(last=True)


# --- nobody is named -----------------------------------------------------------------------------


def test_stages_of_a_pipeline_differ_by_design() -> None:
    for known in ("mesh", "peers"):
        world = World().start()
        peers = {0: (1,), 1: (0,), 2: (3,), 3: (2,)} if known == "peers" else {}
        if known == "mesh":
            for rank in range(4):
                mesh = e.MeshDeclared(
                    rank=rank, names=("dp", "pp"), sizes=(2, 2), coordinates=divmod(rank, 2)
                )
                world.say(mesh, 0)
        steps(world, 60, lambda rank, step: 0.4 if rank % 2 == 0 else 0.2, peers=peers)
        assert said(world) == [], known


def test_a_slow_pipeline_of_two_is_seen_in_its_own_stage() -> None:
    world = World().start()
    for rank in range(4):
        mesh = e.MeshDeclared(
            rank=rank, names=("dp", "pp"), sizes=(2, 2), coordinates=divmod(rank, 2)
        )
        world.say(mesh, 0)
    steps(world, 60, lambda rank, step: {0: 0.4, 1: 0.2, 2: 0.8, 3: 0.2}[rank])
    assert verdict(world).first_failing == (2,)


def test_rank_0_saves_now_and_then_and_the_first_step_is_slow() -> None:
    world = World().start()

    def seconds(rank: int, step: int) -> float:
        if step == 0:
            return 20.0 if rank == 3 else 12.0
        return 0.2 + (0.05 if rank == 0 else 0.0) + (3.0 if rank == 0 and step % 10 == 9 else 0.0)

    steps(world, 80, seconds)
    assert said(world) == []


def test_rank_0_works_for_all_while_they_have_nothing_to_do() -> None:
    """Three quick steps, an evaluation of rank 0, a barrier, and again."""
    world = World().start()
    steps(world, 120, lambda rank, step: (0.5 * (rank == 0)) if step % 4 == 3 else 0.04)
    assert said(world) == []


@pytest.mark.parametrize("every", [1, 3])
def test_a_duty_after_the_update_is_nobodys_fault(every: int) -> None:
    """From the start in each step, or later on in every third."""
    world = World().start()

    def seconds(rank: int, step: int) -> float:
        due = rank == 0 and step % every == 0 and (step >= 30 or every == 1)
        return 0.3 if due else 0.0

    after_update(world, 150, seconds)
    assert said(world) == []


def test_a_call_that_was_not_there_before_is_nobodys_fault() -> None:
    """From a step on rank 0 evaluates, and the others wait for it."""
    world = World().start()
    line = Timeline(world=world, groups={"0": (0, 1, 2, 3)})
    for step in range(150):
        for rank in range(4):
            line.compute(rank, 0.05)
        line.meet("0", "all_reduce 4192 float")
        if step >= 30:
            line.compute(0, 0.1)
            line.meet("0", "barrier")
        line.report()
    assert said(world) == []


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**9),
    ranks=st.integers(2, 8),
    base=st.sampled_from([0.002, 0.02, 0.2]),
    jitter=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_jitter_is_nobodys_fault(seed: int, ranks: int, base: float, jitter: float) -> None:
    """Busy processors delay everybody by random amounts, now and then by a lot."""
    chance = random.Random(seed)
    world = World(nproc=ranks).start()

    def seconds(rank: int, step: int) -> float:
        return base * (1 + chance.expovariate(1 / jitter)) + (
            0.15 * chance.expovariate(1.0) if chance.random() < 0.1 else 0.0
        )

    steps(world, min(int(60 / (base * (1 + 2 * jitter))), 1500), seconds)
    assert said(world) == []


# --- pauses in turn ------------------------------------------------------------------------------


def test_pauses_in_turn() -> None:
    world = World().start()
    steps(world, 90, lambda rank, step: 0.05 + (0.25 if step % 8 == 2 * rank else 0.0))
    found = verdict(world)
    assert (found.verdict, found.first_failing) == ("unsynchronised_pauses", (0, 1, 2, 3))
    assert "gc.disable()" in found.cause
    assert world.incident.action == "report"


def test_pauses_at_the_same_time_cost_nothing_more() -> None:
    world = World().start()
    steps(world, 90, lambda rank, step: 0.05 + (0.25 if step % 4 == 0 else 0.0))
    assert said(world) == []


def test_rare_pauses_are_let_pass() -> None:
    world = World().start()
    steps(world, 400, lambda rank, step: 0.05 + (0.25 if step % 100 == 20 * rank else 0.0))
    assert said(world) == []


# --- clocks --------------------------------------------------------------------------------------


def beat(world: World, skew: float = 0.0) -> None:
    """Pulses of all nodes, by which their clocks are compared."""
    for _ in range(12):
        for node in range(world.nnodes):
            world.now_ns += 20_000_000
            ahead = int(skew * 1e9) if node else 0
            world.now_ns += ahead
            world.say(e.PulsesRead(node_rank=node, pulses=()), node, plan=False)
            world.now_ns -= ahead


def test_a_clock_that_is_ahead_makes_nobody_late() -> None:
    world = World(nnodes=2, nproc=2).start()
    beat(world, skew=5.0)
    steps(world, 60, lambda rank, step: 0.2, skews={1: 5.0})
    assert said(world) == []


def test_late_by_the_aligned_clock() -> None:
    world = World(nnodes=2, nproc=2).start()
    beat(world, skew=5.0)
    steps(world, 60, lambda rank, step: 1.5 if rank == 1 else 0.2, skews={1: 5.0})
    found = verdict(world)
    assert found.first_failing == (1,)
    assert "clocks" in found.reason


def test_without_an_estimate_nodes_are_not_compared() -> None:
    world = World(nnodes=2, nproc=2).start()
    steps(world, 10, lambda rank, step: 2.0 if rank == 1 else 0.2)
    assert said(world) == []
