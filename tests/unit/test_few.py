"""Few of thousands of ranks are looked at first: these show what all would, or all are asked."""

import random
from collections.abc import Callable

import pytest

from harness import events as e
from harness import orders as o
from harness.diagnosis.hang import firsts
from harness.incidents import Verdict
from harness.policy import Policy
from harness.recovery import failing, watching
from harness.sightings import Pulse
from tests.replay.job import Do, Job
from tests.replay.world import CRY, SECOND, World

NODES, NPROC, FIRST = 24, 2, 8
AWAY, FROZEN = Do(""), Do("", frozen=True)
Change = Callable[[int, list[Do]], list[Do]]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of ranks stand in for thousands."""
    monkeypatch.setattr(watching, "_THOUSANDS", 16)
    monkeypatch.setattr(firsts, "_ODD", 3)
    monkeypatch.setattr(firsts, "_USUAL", FIRST - 3)


def turn(rank: int, place: int, *what: Do, instead: int = 1) -> Change:
    """`rank` does `what` at the `place`-th turn of its program, and leaves out so many others."""

    def change(who: int, program: list[Do]) -> list[Do]:
        if who != rank:
            return program
        return [*program[:place], *what, *program[place + instead :]]

    return change


def both(*changes: Change) -> Change:
    def change(who: int, program: list[Do]) -> list[Do]:
        for each in changes:
            program = each(who, program)
        return program

    return change


def job_of(change: Change, pp: int = 3) -> Job:
    return Job(dp=NODES // pp, pp=pp, tp=NPROC, change=change)


def report(world: World, step: int, begun: Callable[[int], int]) -> None:
    for node in range(NODES):
        pulses = tuple(
            Pulse(
                rank=rank, step=step, phase="step", heartbeat_ns=1,
                collectives=9 * step + begun(rank),
            )
            for rank in range(node * NPROC, (node + 1) * NPROC)
        )  # fmt: skip
        world.say(e.PulsesRead(node_rank=node, pulses=pulses), node, plan=False)
    world.settle()


def hung(job: Job, begun: Callable[[int], int] | None = None) -> World:
    """A run of `job` that has come to stand, as its pulses tell."""
    world = World(nnodes=NODES, nproc=NPROC, policy=Policy(pulse_interval=1.0))
    world.evidence = job.evidence
    world.start()
    for step in range(1, 12):
        world.now_ns += SECOND // 4
        report(world, step, lambda rank: 0)
    report(world, 11, begun or job.begun)
    return world


def judged(world: World) -> Verdict:
    for _ in range(240):
        if world.state.incidents:
            return world.state.incidents[0].verdict
        world.now_ns += SECOND // 4
        for node in range(NODES):
            world.say(e.PulsesRead(node_rank=node, pulses=()), node, plan=False)
        world.settle()
        world.obey(o.CollectEvidence)
    raise AssertionError("no verdict within a minute")


def asked(world: World) -> list[int]:
    """Of how many nodes each look was."""
    return [len(collection.asked) for collection in world.state.collections]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (turn(13, 14, AWAY), "rank_stuck_outside_collective"),
        (turn(47, 0, AWAY), "rank_stuck_outside_collective"),
        (turn(13, 14, FROZEN), "rank_frozen"),
        (turn(13, 12), "collective_mismatch"),
        (turn(13, 15), "collective_mismatch"),
        (turn(13, 12, Do("tp", size=7)), "shape_mismatch"),
        (turn(13, 12, Do("default_pg"), instead=0), "shape_mismatch"),
    ],
    ids=["away", "away at first", "frozen", "left out tp", "left out dp", "shape", "one more"],
)
def test_few_are_enough_where_one_rank_is_odd(change: Change, verdict: str) -> None:
    world = hung(job_of(change))
    found = judged(world)
    assert (found.verdict, len(found.first_failing)) == (verdict, 1)
    assert found.first_failing[0] in (13, 47)
    assert set(asked(world)) == {FIRST}
    assert set(found.victims) == set(range(48)) - set(found.first_failing)
    assert "16 of 48 ranks were looked at, the others make no progress either" in found.reason
    assert "left no record" not in found.reason


def test_two_ranks_that_are_away_are_both_named() -> None:
    world = hung(job_of(both(turn(13, 14, AWAY), turn(40, 14, AWAY)), pp=1))
    assert judged(world).first_failing == (13, 40)
    assert set(asked(world)) == {FIRST}


def test_what_only_all_can_show_is_asked_of_all() -> None:
    def change(rank: int, program: list[Do]) -> list[Do]:
        return [*program[:8], Do("default_pg", sticks=True)]

    world = hung(job_of(change, pp=1))
    found = judged(world)
    assert found.verdict == "network_stall"
    assert found.first_failing == tuple(range(48))
    assert set(asked(world)) == {NODES}


def test_a_rank_that_no_pulse_gives_away_is_found_all_the_same() -> None:
    world = hung(job_of(turn(33, 14, AWAY)), begun=lambda rank: 0)
    assert 33 // NPROC not in firsts.nodes_to_ask(world.state.attempts[-1], set(range(NODES)))
    assert judged(world).first_failing == (33,)
    assert asked(world)[0] == NODES


def test_ranks_that_go_on_are_not_asked_for_being_alone_with_their_count() -> None:
    """Jobs side by side in one world: one of them stands, all ranks of it alike."""
    world = hung(job_of(turn(0, 14, AWAY)), begun=lambda rank: 0 if rank < 6 else 100 + rank)
    still_by_ns = world.now_ns
    world.now_ns += 5 * SECOND
    for node in range(3, NODES):
        pulses = [
            Pulse(rank=rank, step=12, phase="step", heartbeat_ns=1, collectives=500 + rank)
            for rank in (2 * node, 2 * node + 1)
        ]
        world.say(e.PulsesRead(node_rank=node, pulses=tuple(pulses)), node, plan=False)
    found = firsts.nodes_to_ask(world.state.attempts[-1], set(range(NODES)), still_by_ns)
    assert len(found) == FIRST
    assert {0, 1, 2} <= found


def test_few_that_agree_are_no_majority() -> None:
    odd = [turn(rank, 12, Do("dp", size=7)) for rank in (12, 18, 24)]  # of eight in their dp group
    world = hung(job_of(both(*odd), pp=3))
    assert judged(world).first_failing == (12, 18, 24)


@pytest.mark.parametrize("seed", range(16))
def test_few_never_say_otherwise_than_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that are at fault it may be one alone, which the other one waits for no more."""
    draw = random.Random(seed)
    ranks = draw.sample(range(48), draw.choice([1, 1, 2]))
    faults = []
    for rank in ranks:
        what = draw.choice([[AWAY], [FROZEN], [], [Do("tp", size=7)], [Do("dp"), Do("tp")]])
        faults.append(turn(rank, draw.randrange(4, 16), *what, instead=draw.choice([0, 1])))
    job = job_of(both(*faults), pp=draw.choice([1, 3]))
    if not job.hangs:
        return
    few = judged(hung(job))
    monkeypatch.setattr(watching, "nodes_to_ask", lambda attempt, reachable, still_by_ns: reachable)
    of_all = judged(hung(job))
    same = (few.verdict, few.first_failing) == (of_all.verdict, of_all.first_failing)
    assert same or (len(ranks) == 2 and set(few.first_failing) <= set(ranks))


# --- a rank fails -------------------------------------------------------------------------------


def failed(*ranks: int, message: str = "a batch of another shape", traceback: str = "") -> World:
    world = hung(job_of(turn(13, 14, AWAY)))
    for rank in ranks:
        world.raises(rank, "ValueError", message, traceback=traceback)
        world.exit(rank, 1)
    return world


def test_an_exception_needs_no_look_at_all_others() -> None:
    world = failed(40)
    verdict = judged(world)
    assert (verdict.verdict, verdict.first_failing) == ("exception", (40,))
    assert asked(world)[0] == FIRST + 1
    assert 13 in verdict.innocent
    assert "30 others were not looked at" in verdict.reason
    assert 40 // NPROC in world.state.collections[0].asked


def test_nodes_of_ranks_that_fail_later_are_asked_too() -> None:
    world = failed(40)
    world.raises(5, "ValueError", "another")
    assert 5 // NPROC in world.state.collections[0].asked
    assert judged(world).first_failing == (40,)


@pytest.mark.parametrize("message", ["a batch of another shape", CRY])
def test_what_is_raised_in_a_collective_is_held_against_all(message: str) -> None:
    world = failed(40, message=message, traceback="torch/distributed/distributed_c10d.py")
    judged(world)
    assert asked(world)[0] == NODES


def test_where_many_fail_the_first_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "_FEW_RANKS", 2)
    world = hung(job_of(turn(13, 14, AWAY)))
    for rank in (4, 40, 44):
        world.raises(
            rank, "ValueError" if rank == 4 else "RuntimeError", "no" if rank == 4 else CRY
        )
    first = world.state.collections[0].asked
    assert {2, 20} <= first
    assert len(first) < NODES
    verdict = judged(world)
    assert (verdict.verdict, verdict.first_failing) == ("exception", (4,))
    assert {40, 44} <= set(verdict.victims)
    assert len(world.state.collections[0].asked) < NODES
