"""The state of a run, folded from its records: what the controller decides on and what every
view shows. No decision and no formatting here.

`fold` changes the state it is given and returns it; nothing else may change a state. It takes no
clock: all times come from the records, so that a replay folds to the same state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from typing_extensions import assert_never

from harness import events as e
from harness import orders as o
from harness.checkpoints import CheckpointMark
from harness.incidents import Incident

RankStatus = Literal["not_started", "running", "raised", "exited", "stopped"]
Stage = Literal["gathering", "storing", "running", "judging", "stopping", "ended"]


@dataclass(slots=True)
class RankState:
    """One rank in one attempt."""

    rank: int
    node_rank: int
    local_rank: int = -1
    pid: int = 0
    status: RankStatus = "not_started"
    phase: str = "init"
    step: int = 0
    step_ns: int = 0
    loss: float | None = None
    loss_finite: bool = True
    tokens: int = 0
    total_steps: int = 0
    heartbeat_ns: int = 0
    started_ns: int = 0
    raised: e.WorkerRaised | None = None
    exited: e.WorkerExited | None = None
    evidence: e.EvidenceTaken | None = None


@dataclass(slots=True)
class AttemptState:
    """One launch of all workers. Times are wall-clock nanoseconds; 0: not yet."""

    index: int
    world_size: int
    ranks: dict[int, RankState]
    why: str
    started_ns: int
    first_step_ns: int = 0
    """When the first rank completed its first step of this attempt."""
    trouble_ns: int = 0
    """Earliest sign of trouble: raised, or exited with an error without having been told to."""
    stopped_ns: int = 0
    """When no worker of it was left."""
    resumed_step: int | None = None
    """Step of the checkpoint it loaded; None when it started from nothing."""
    stopped_nodes: set[int] = field(default_factory=set)

    @property
    def step(self) -> int:
        """Steps completed by the rank that is furthest."""
        return max((rank.step for rank in self.ranks.values()), default=0)


@dataclass(slots=True)
class NodeState:
    node_rank: int
    host: str
    pid: int
    local_world_size: int
    connected: bool = True
    seen_ns: int = 0
    """Wall clock of the last record from its agent."""
    lost_why: str = ""
    launching: str = ""
    """zygote, or why ranks are started fresh."""


@dataclass(slots=True)
class Collection:
    """One round of evidence."""

    index: int
    attempt: int
    ordered_ns: int
    why: str
    waiting: set[int]
    """Nodes that have not answered yet."""


@dataclass(slots=True)
class RunState:
    """Everything known of a run."""

    run: e.RunStarted | None = None
    started_ns: int = 0
    last_ns: int = 0
    """Wall clock of the newest record."""
    incarnations: int = 0
    """Times a controller took charge."""
    stage: Stage = "gathering"
    nodes: dict[int, NodeState] = field(default_factory=dict)
    attempts: list[AttemptState] = field(default_factory=list)
    store: e.StoreReady | None = None
    """The store of the newest attempt."""
    store_failed: e.StoreFailed | None = None
    collections: list[Collection] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    checkpoints: dict[int, CheckpointMark] = field(default_factory=dict)
    """By step; a restore point once all ranks have saved it."""
    mesh: e.MeshDeclared | None = None
    """As the lowest rank declared it; its coordinates are that rank's own."""
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    groups: dict[str, e.GroupCreated] = field(default_factory=dict)
    faults: list[e.FaultInjected] = field(default_factory=list)
    commands: list[e.CommandTaken] = field(default_factory=list)
    stop: o.StopRun | None = None
    """The first accepted request to stop."""
    orders: dict[int, list[o.Order]] = field(default_factory=dict)
    """Orders given so far, by node, in order."""
    ended: e.RunEnded | None = None
    ended_ns: int = 0

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def newest_restore_point(self) -> CheckpointMark | None:
        """The newest checkpoint that every rank of the run has saved."""
        attempt = self.attempt
        if attempt is None:
            return None
        whole = [c for c in self.checkpoints.values() if len(c.saved_by) >= attempt.world_size]
        return max(whole, key=lambda mark: mark.step, default=None)


def fold(state: RunState, record: e.Record) -> RunState:
    """`state` after `record`."""
    stamp, event = record.stamp, record.event
    state.last_ns = max(state.last_ns, stamp.wall_ns)
    if stamp.source.startswith("agent:"):
        node = state.nodes.get(int(stamp.source.partition(":")[2]))
        if node is not None:
            node.seen_ns = stamp.wall_ns
    _fold(state, stamp, event)
    return state


def fold_all(records: Iterable[e.Record], state: RunState | None = None) -> RunState:
    """All records folded, into a fresh state unless one is given."""
    state = RunState() if state is None else state
    for record in records:
        fold(state, record)
    return state


def _fold(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    match event:
        case e.RunStarted():
            state.run = event
            state.started_ns = stamp.wall_ns
        case e.ControllerStarted():
            state.incarnations = event.incarnation + 1
        case e.AgentJoined():
            state.nodes[event.node_rank] = NodeState(
                node_rank=event.node_rank,
                host=event.host,
                pid=event.pid,
                local_world_size=event.local_world_size,
                seen_ns=stamp.wall_ns,
            )
        case e.AgentLost():
            node = state.nodes.get(event.node_rank)
            if node is not None:
                node.connected = False
                node.lost_why = event.why
        case e.ZygoteReady():
            _set_launching(state, event.node_rank, "zygote")
        case e.ZygoteUnused():
            _set_launching(state, event.node_rank, event.why)
        case e.StoreReady():
            state.store = event
        case e.StoreFailed():
            state.store_failed = event
        case e.AttemptStarted():
            state.attempts.append(_new_attempt(stamp, event))
            state.stage = "running"
        case e.WorkersStopped():
            _workers_stopped(state, stamp, event)
        case e.RunEnded():
            state.ended = event
            state.ended_ns = stamp.wall_ns
            state.stage = "ended"
        case e.OrderGiven():
            _order_given(state, stamp, event)
        case e.CommandTaken():
            state.commands.append(event)
            if event.accepted and isinstance(event.command, o.StopRun) and state.stop is None:
                state.stop = event.command
        case e.FaultInjected():
            state.faults.append(event)
        case e.IncidentOpened():
            state.incidents.append(event.incident)
        case e.IncidentClosed():
            _incident_closed(state, event)
        case e.EvidenceComplete():
            for collection in state.collections:
                if collection.index == event.collection:
                    collection.waiting.discard(event.node_rank)
        case (
            e.WorkerStarted()
            | e.WorkerRaised()
            | e.WorkerExited()
            | e.PhaseChanged()
            | e.MeshDeclared()
            | e.GroupCreated()
            | e.CheckpointSaved()
            | e.CheckpointLoaded()
            | e.FactsLost()
            | e.PulsesRead()
            | e.EvidenceTaken()
        ):
            _fold_worker(state, stamp, event)
        case _:
            assert_never(event)


def _fold_worker(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    match event:
        case e.PulsesRead():
            for pulse in event.pulses:
                _pulse(state, stamp, pulse)
        case e.WorkerStarted():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.node_rank, rank.local_rank = event.node_rank, event.local_rank
                rank.pid, rank.status, rank.started_ns = event.pid, "running", stamp.wall_ns
        case e.WorkerRaised():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.raised, rank.status = event, "raised"
                _trouble(state, stamp.attempt, event.raised_ns)
        case e.WorkerExited():
            _worker_exited(state, stamp, event)
        case e.PhaseChanged():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.phase = event.phase
        case e.MeshDeclared():
            state.coordinates[event.rank] = dict(zip(event.names, event.coordinates, strict=True))
            if state.mesh is None or event.rank <= state.mesh.rank:
                state.mesh = event
        case e.GroupCreated():
            state.groups[f"{event.pg}@{event.rank}"] = event
        case e.CheckpointSaved():
            _checkpoint_saved(state, event)
        case e.CheckpointLoaded():
            attempt = _attempt(state, stamp.attempt)
            if attempt is not None:
                attempt.resumed_step = event.step
        case e.EvidenceTaken():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.evidence = event
        case _:
            pass


def _attempt(state: RunState, index: int) -> AttemptState | None:
    return state.attempts[index] if 0 <= index < len(state.attempts) else None


def _rank(state: RunState, attempt_index: int, rank: int) -> RankState | None:
    attempt = _attempt(state, attempt_index)
    return None if attempt is None else attempt.ranks.get(rank)


def _trouble(state: RunState, attempt_index: int, at_ns: int) -> None:
    attempt = _attempt(state, attempt_index)
    if attempt is not None and (attempt.trouble_ns == 0 or at_ns < attempt.trouble_ns):
        attempt.trouble_ns = at_ns


def _set_launching(state: RunState, node_rank: int, how: str) -> None:
    node = state.nodes.get(node_rank)
    if node is not None:
        node.launching = how


def _new_attempt(stamp: e.Stamp, event: e.AttemptStarted) -> AttemptState:
    ranks = {
        rank: RankState(rank=rank, node_rank=node.node_rank)
        for node in event.nodes
        for rank in node.ranks
    }
    return AttemptState(
        index=event.attempt,
        world_size=event.world_size,
        ranks=ranks,
        why=event.why,
        started_ns=stamp.wall_ns,
    )


def _pulse(state: RunState, stamp: e.Stamp, pulse: e.Pulse) -> None:
    attempt = _attempt(state, stamp.attempt)
    rank = None if attempt is None else attempt.ranks.get(pulse.rank)
    if attempt is None or rank is None:
        return
    if pulse.step > 0 and attempt.first_step_ns == 0 and pulse.step != attempt.resumed_step:
        attempt.first_step_ns = pulse.step_ns or stamp.wall_ns
    rank.step, rank.step_ns, rank.phase = pulse.step, pulse.step_ns, pulse.phase
    rank.loss, rank.loss_finite = pulse.loss, pulse.loss_finite
    rank.tokens, rank.total_steps = pulse.tokens, pulse.total_steps
    rank.heartbeat_ns = pulse.heartbeat_ns


def _worker_exited(state: RunState, stamp: e.Stamp, event: e.WorkerExited) -> None:
    rank = _rank(state, stamp.attempt, event.rank)
    if rank is None:
        return
    rank.exited = event
    rank.status = "stopped" if event.ordered else "exited"
    if not event.ordered and event.exit_code != 0:
        _trouble(state, stamp.attempt, event.exited_ns)


def _checkpoint_saved(state: RunState, event: e.CheckpointSaved) -> None:
    mark = state.checkpoints.get(event.step)
    saved_by = frozenset() if mark is None or mark.path != event.path else mark.saved_by
    seconds = event.seconds if mark is None else max(mark.seconds, event.seconds)
    state.checkpoints[event.step] = CheckpointMark(
        step=event.step, path=event.path, saved_by=saved_by | {event.rank}, seconds=seconds
    )


def _workers_stopped(state: RunState, stamp: e.Stamp, event: e.WorkersStopped) -> None:
    attempt = _attempt(state, event.attempt)
    if attempt is None:
        return
    attempt.stopped_nodes.add(event.node_rank)
    if attempt.stopped_nodes >= {rank.node_rank for rank in attempt.ranks.values()}:
        attempt.stopped_ns = stamp.wall_ns


def _order_given(state: RunState, stamp: e.Stamp, event: e.OrderGiven) -> None:
    state.orders.setdefault(event.node_rank, []).append(event.order)
    match event.order:
        case o.HostStore():
            state.stage, state.store, state.store_failed = "storing", None, None
        case o.CollectEvidence(collection=index, attempt=attempt, why=why):
            state.stage = "judging"
            if not any(c.index == index for c in state.collections):
                state.collections.append(
                    Collection(
                        index=index,
                        attempt=attempt,
                        ordered_ns=stamp.wall_ns,
                        why=why,
                        waiting=set(),
                    )
                )
            state.collections[index].waiting.add(event.node_rank)
        case o.StopWorkers():
            state.stage = "stopping"
        case _:
            pass


def _incident_closed(state: RunState, event: e.IncidentClosed) -> None:
    for at, incident in enumerate(state.incidents):
        if incident.id == event.incident_id:
            state.incidents[at] = replace(
                incident, outcome=event.outcome, lost_steps=event.lost_steps
            )
