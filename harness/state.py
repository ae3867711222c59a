"""The state of a run, folded from its records: what the controller decides on and what every
view shows. No decision and no formatting here.

`fold` changes the state it is given and returns it; nothing else may change a state. It takes no
clock: all times come from the records, so that a replay folds to the same state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """The mesh over all ranks, from the lowest rank that declared one (its coordinates are its own)."""
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
