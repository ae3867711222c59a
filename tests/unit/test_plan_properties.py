"""Whatever agents do, in whatever order: the plan comes to rest, never repeats an order, always
ends the run, and can be resumed from the journal at any line; its ledger closes all the while."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.faults import Fault
from harness.holdings import Generation
from harness.policy import Policy
from harness.state import fold_all
from tests.replay.closing import closes
from tests.replay.world import CRY, TIMED_OUT, World, collective, history

_CHOICES = st.lists(st.integers(0, 999), min_size=5, max_size=80)
_POLICIES = st.builds(
    Policy,
    max_restarts=st.integers(0, 3),
    same_failure_limit=st.integers(2, 3),
    evidence_budget=st.sampled_from([0.5, 5.0]),
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    nodes=st.sampled_from([1, 1, 2, 3]),
    fewer=st.sampled_from([None, None, 0, 1]),
    spares=st.sampled_from([0, 0, 1]),
    nproc=st.integers(1, 3),
    policy=_POLICIES,
    started=st.sampled_from([True] * 7 + [False]),
    heeds=st.booleans(),
    choices=_CHOICES,
)
def test_every_interleaving_ends_once(
    nodes: int,
    fewer: int | None,
    spares: int,
    nproc: int,
    policy: Policy,
    started: bool,
    heeds: bool,
    choices: list[int],
) -> None:
    world = World(
        nnodes=nodes,
        nproc=nproc,
        policy=policy,
        chaos_allowed=True,
        min_nodes=0 if fewer is None else max(1, nodes - fewer),
        spares=spares if nodes > 1 else 0,
    )
    world.evidence = lambda rank: {"collectives": history(3, collective(3, retired=False))}
    world.heeds = world.writes = heeds
    if started:
        world.start()
    for choice in choices:
        possible = _possible(world)
        possible[choice % len(possible)]()
    _let_it_end(world)

    assert world.state.ended is not None
    assert 0 <= world.state.ended.exit_code < 256
    ends = [r for r in world.records if isinstance(r.event, e.RunEnded)]
    assert len(ends) == 1
    _no_order_twice(world)
    _resumes_from_any_line(world)
    closes(world.state)
    for at in range(1, len(world.records), max(1, len(world.records) // 3)):
        closes(fold_all(world.records[:at]))


_Act = Callable[[], object]


def _possible(world: World) -> list[_Act]:
    """All that can happen now; the likelier more than once."""
    acts: list[_Act] = [
        partial(world.pass_time, 0.3),
        world.wake,
        partial(_command, world, o.Inject(fault=Fault(kind="kill", rank=0))),
    ]
    if len(world.records) % 7 == 0:
        acts.append(partial(_command, world, o.StopRun(why="asked to", signal=2)))
    if len(world.records) % 9 == 0:
        acts.append(partial(_command, world, o.Preempt(why="SIGTERM received")))
    if len(world.records) % 5 == 0:
        acts.append(partial(_command, world, o.SaveNow(request=f"r{len(world.records)}")))
    if world.state.preempt is not None or world.state.save is not None or world.min_nodes:
        acts += [partial(setattr, world, "missed", 1), partial(_save, world)]
    if len(world.records) % 4 == 0:
        acts += [partial(_hold, world, node) for node in range(world.nnodes + world.spares)]
    acts += [partial(_obey_one, world, at) for at in range(len(world.pending))] * 3
    for node in range(world.nnodes + world.spares):
        if not _joined(world, node) and world.state.ended is None:
            acts += [partial(world.join, node, 1000 + len(world.records))] * 3
        elif _joined(world, node) and len(world.records) % 5 == 0:
            acts.append(partial(world.lose, node))
    if any(isinstance(order, o.HostStore) for _, order in world.pending):
        acts.append(partial(_store_fails, world))
    return acts + _workers_can(world)


def _obey_one(world: World, at: int) -> None:
    world.now_ns += 1_000_000
    world.do(*world.pending.pop(at))


def _joined(world: World, node: int) -> bool:
    return node in world.state.nodes and world.state.nodes[node].connected


def _command(world: World, command: o.Command) -> None:
    accepted, why = recovery.accept(world.state, command)
    world.say(e.CommandTaken(command=command, by="test", accepted=accepted, why=why))


def _save(world: World) -> None:
    """Every rank that can saves what it has."""
    attempt = world.state.attempt
    for rank in [] if attempt is None else list(attempt.ranks.values()):
        if rank.alive and _joined(world, rank.node_rank):
            event = e.CheckpointSaved(rank=rank.rank, step=rank.step, path="ck", seconds=0.1)
            world.say(event, rank.node_rank)


def _hold(world: World, node: int) -> None:
    """The node tells of its memory: its own ranks of the step they are at, copies of another's."""
    attempt = world.state.attempt
    if attempt is None or not _joined(world, node) or node not in attempt.nodes:
        return
    own = tuple(attempt.nodes[node].ranks)
    others = [ranks for other, ranks in attempt.nodes.items() if other != node]
    generation = Generation(
        attempt=attempt.index,
        step=attempt.step,
        own=own,
        shards=tuple(str(rank % 2) for rank in own),
        copies=tuple(others[0].ranks) if others else (),
    )
    held = e.MemoryHeld(node_rank=node, attempt=attempt.index, generations=(generation,))
    world.say(e.MemoryServed(node_rank=node, address=f"10.0.0.{node}:7"), node)
    world.say(held, node)


def _store_fails(world: World) -> None:
    due = next(it for it in world.pending if isinstance(it[1], o.HostStore))
    world.pending.remove(due)
    assert isinstance(due[1], o.HostStore)
    world.say(e.StoreFailed(attempt=due[1].attempt, why="[Errno 98] EADDRINUSE"), due[0])


def _workers_can(world: World) -> list[_Act]:
    """Only workers that are there can do something, and only while their node is."""
    attempt = world.state.attempt
    acts: list[_Act] = []
    for rank in [] if attempt is None else attempt.ranks.values():
        if not rank.alive or not _joined(world, rank.node_rank):
            continue
        number = rank.rank
        acts += [partial(world.step, rank.step + 1, [number])] * 2
        if rank.raised is not None:
            acts += [partial(world.exit, number, 1)] * 3
            continue
        acts.append(partial(world.exit, number, 0))
        acts += [partial(world.exit, number, signal=9), partial(world.exit, number, signal=6)]
        acts += [
            partial(world.raises, number, "RuntimeError", text, collectives=count)
            for text, count in (("boom", 0), (CRY, 3), (TIMED_OUT, 3), ("out of memory", 3))
        ]
    return acts


def _let_it_end(world: World) -> None:
    """Everybody still there does what is asked, time passes, and workers end by themselves: when
    there is nothing to wait for, and else now and then, as a run may be looked at for ever."""
    for turn in range(60):
        if world.state.ended is not None:
            break
        world.obey()
        if world.state.ended is None and (not world.wake() or turn % 4 == 3):
            for node in range(world.nnodes):
                if not _joined(world, node):
                    break
            attempt = world.state.attempt
            for rank in [] if attempt is None else list(attempt.ranks.values()):
                if rank.alive and world.state.ended is None:
                    world.exit(rank.rank, 0 if rank.raised is None else 1)
    world.obey()


def _no_order_twice(world: World) -> None:
    """Store, start, stop, evidence and shutdown once per node and what they are for; a text once
    per node; no more harm than was asked for."""
    given = Counter(
        (record.event.node_rank, _purpose(record.event.order))
        for record in world.records
        if isinstance(record.event, e.OrderGiven)
        and not isinstance(record.event.order, o.InjectFault)
        and not (isinstance(record.event.order, o.SaveAtStep) and record.event.order.step < 0)
    )
    assert [key for key, count in given.items() if count > 1] == []
    assert world.state.injects_ordered <= len(world.state.injects)


def _purpose(order: o.Order) -> tuple[str, object]:
    match order:
        case o.HostStore(attempt=attempt) | o.StartWorkers(attempt=attempt):
            return type(order).__name__, attempt
        case o.StopWorkers(attempt=attempt):
            return "stop", attempt
        case o.StopAtStep(step=step, agreed=agreed):
            return "stop at", (step, agreed)
        case o.SaveAtStep(attempt=attempt, step=step, agreed=agreed):
            return "save at", (attempt, step, agreed)
        case o.KeepMemory(failed=attempt):
            return "keep", attempt
        case o.CollectEvidence(collection=collection):
            return "collect", collection
        case o.Notify(text=text):
            return "notify", text
        case _:
            return type(order).__name__, None


def _resumes_from_any_line(world: World) -> None:
    """The journal folds to the same state with nothing left to decide; a controller that dies
    between two decisions of one plan goes on with the rest of them."""
    assert fold_all(world.records) == world.state
    assert recovery.plan(world.state, world.now_ns) == []
    decided = [
        at for at, record in enumerate(world.records) if isinstance(record.event, e.OrderGiven)
    ]
    for at in decided[:6]:
        cut = World.resumed(world, at + 1)
        cut.settle()
        _no_order_twice(cut)
