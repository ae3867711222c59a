"""What is known of a run: the run, its attempts, ranks, nodes and rounds of evidence."""

from dataclasses import dataclass, field
from typing import Literal

from harness import events as e
from harness import orders as o
from harness.checkpoints import CheckpointMark
from harness.devices import Gpu
from harness.incidents import Incident
from harness.membership import Strike
from harness.setups import Setup
from harness.state.arrivals import Arrivals
from harness.state.books import Books, Moments
from harness.state.clocks import Clocks
from harness.state.doubts import Doubts
from harness.state.growth import Growth
from harness.state.marking import Book
from harness.state.replicas import Replicas
from harness.state.rerun import Rerun
from harness.state.steady import WallClocks
from harness.topology import NodeRanks

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
    phase_ns: int = 0
    """When it entered the phase; later by up to a pulse interval when its pulse said so."""
    step: int = 0
    step_ns: int = 0
    loss: float | None = None
    loss_finite: bool = True
    tokens: int = 0
    total_steps: int = 0
    heartbeat_ns: int = 0
    collectives: int = 0
    """Collectives and point-to-point operations it has begun."""
    asked_stop: int = -1
    """Last step at which its script asked whether to stop; -1: it never did."""
    advanced_ns: int = 0
    """When it was last seen to have made progress: step, phase or operations; its start counts."""
    started_ns: int = 0
    raised: e.WorkerRaised | None = None
    exited: e.WorkerExited | None = None
    evidence: e.EvidenceTaken | None = None
    refs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """(source, seq) of the records behind `raised`, `exited` and `evidence`, by those names."""
    books: Books = field(default_factory=Books)

    @property
    def alive(self) -> bool:
        """Its process was started and is not known to be gone."""
        return self.status in ("running", "raised")


@dataclass(slots=True)
class Pace:
    """How long ranks go without visible progress."""

    usual_ns: float = 0.0
    """Most pauses are shorter: about nine of ten, with the newest counting most."""
    longest_ns: int = 0
    """The longest pause of a rank that was past its start; 0 while there was none."""

    def note(self, pause_ns: int, *, past_start: bool) -> None:
        """A pause has ended. A quantile by small steps, as in frugal streaming (Ma, 2013)."""
        if past_start and pause_ns > self.longest_ns:
            self.longest_ns = pause_ns
        share = 0.3 if pause_ns > self.usual_ns else 0.03
        self.usual_ns += share * (pause_ns - self.usual_ns)


@dataclass(slots=True)
class Stall:
    """The suspicion that an attempt does not go on, since the first look at it."""

    since_ns: int
    look: e.StallLooked
    looks: int = 1


@dataclass(slots=True)
class Meeting:
    """A step at which all ranks are to do something: to stop, or to save. -1: they are only asked
    how far they are."""

    step: int
    tries: int = 0
    """Steps proposed before."""
    told: set[int] = field(default_factory=set)
    """Nodes that were told of it."""
    answers: dict[int, e.StopStepTaken | e.SaveStepTaken] = field(default_factory=dict)
    agreed: set[int] = field(default_factory=set)
    """Nodes that were told that it stays."""


@dataclass(slots=True)
class AttemptState:
    """One launch of all workers. Times are wall-clock nanoseconds; 0: not yet."""

    index: int
    world_size: int
    ranks: dict[int, RankState]
    nodes: dict[int, NodeRanks]
    """Its nodes by node rank."""
    why: str
    started_ns: int
    first_step_ns: int = 0
    """When the first rank completed its first step of this attempt."""
    trouble_ns: int = 0
    """Earliest sign of trouble: raised, exited with an error without having been told to, or the
    loss of a node."""
    trouble_seen_ns: int = 0
    """Stamp of the record that brought the first sign; never earlier than the sign itself by more
    than what the report took."""
    gone: set[int] = field(default_factory=set)
    """Ranks whose process is known to be gone."""
    failed: set[int] = field(default_factory=set)
    """Ranks that raised, or exited with an error without having been told to."""
    lost_nodes: dict[int, str] = field(default_factory=dict)
    """Nodes that were lost while this was the newest attempt and not over, and why."""
    lost_ns: int = 0
    """When the first of them was called lost."""
    start_ordered: set[int] = field(default_factory=set)
    """Nodes that were told to start their workers."""
    stop_ordered: set[int] = field(default_factory=set)
    stop_ordered_ns: int = 0
    """When the first node was told to stop its workers."""
    stop_why: str = ""
    stopped_ns: int = 0
    """When no worker of it was left."""
    resumed_step: int | None = None
    """Step of the checkpoint it loaded; None when it started from nothing."""
    stopped_nodes: set[int] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)
    begun: bool = False
    """A rank has begun an operation, or made a step."""
    regroup: e.Regrouping | None = None
    """Why it was stopped on purpose."""
    restart: o.RestartRun | None = None
    """The first accepted request to start its workers again."""
    stop_at: "Meeting | None" = None
    """Where its ranks were last told to stop."""
    save_at: "Meeting | None" = None
    """Where they were last told to save."""
    stillest_ns: int = 0
    """No living rank has gone without progress since before this time."""
    stillest_heard_ns: int = 0
    """When the agent of the rank for which that holds last reported."""
    heard_ns: dict[int, int] = field(default_factory=dict)
    """By node: when its agent last reported pulses, if only that there are none."""
    surveyed_ns: int = 0
    """When that was found out."""
    looked: int = -1
    """Index of the last look at a suspected stall that made no verdict."""
    stall: Stall | None = None
    """What the looks at a suspected stall have shown; None again when every rank has moved on."""
    forgiven: dict[str, int] = field(default_factory=dict)
    """Places where ranks were waited for and went on by themselves -> longest pause there, ns."""
    moments: Moments = field(default_factory=Moments)
    checkpoint_interval: float | None = None
    """Seconds between saves that its workers were told; None in journals that did not say."""
    memory: tuple[int, int] = (-1, -1)
    """The generation in memory that it was to go on from: attempt and step; -1: none."""
    sources: set[str] = field(default_factory=set)
    """Where its ranks say that they resumed from: disk, memory, neighbour."""
    shards: dict[int, str] = field(default_factory=dict)
    """By rank: what parts of the state it stages; equal on replicas."""
    keep_ordered: dict[int, o.KeepMemory] = field(default_factory=dict)
    """By node: what was to be written of its memory once it had come to an end."""
    keep_ordered_ns: int = 0
    kept: dict[int, e.MemoryKept] = field(default_factory=dict)
    """By node: what became of that."""

    setups: dict[int, Setup] = field(default_factory=dict)
    """By rank: what it runs with, by its newest word."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    growth: Growth = field(default_factory=Growth)
    gpu_errors: list[tuple[e.GpuFailed, tuple[str, int]]] = field(default_factory=list)
    """What drivers have reported of GPUs, each with (source, seq) of its record."""
    counted: dict[str, e.GroupCreated] = field(default_factory=dict)
    """Groups whose names count up from the first group of all on, by name, as reported first."""
    clash: tuple[e.GroupCreated, e.GroupCreated] | None = None
    """Two groups of different ranks that were made under one such name."""
    files: dict[int, list[e.CheckpointFile]] = field(default_factory=dict)
    """By rank: the newest things it did with checkpoint files of its own, oldest first."""
    loaded: dict[int, tuple[e.CheckpointFile, int]] = field(default_factory=dict)
    """By rank: the checkpoint that it went on from, and the operations it had begun by then."""
    flaws: dict[tuple[int, str], tuple[e.CheckpointFlaw, e.Stamp]] = field(default_factory=dict)
    """What is wrong with files in watched folders, by node and path, each with the stamp of the
    record that shows it."""
    set_aside: dict[int, e.FilesSetAside] = field(default_factory=dict)
    """By node: files that were given other names after this attempt."""
    aside_ordered: set[int] = field(default_factory=set)
    """Nodes that were told to do so."""
    books: dict[tuple[str, str, int], Book] = field(default_factory=dict)
    """Marks of groups that span nodes, by name, role and size of the group."""
    replicas: Replicas = field(default_factory=Replicas)
    """Digests of what ranks should have in common."""
    reruns: list[Rerun] = field(default_factory=list)
    """Differences of earlier attempts that this one may come to again."""
    doubts: Doubts = field(default_factory=Doubts)
    """What ranks have found wrong with their own numbers."""
    marks_differ: list[tuple[e.MarksDiffer, tuple[str, int]]] = field(default_factory=list)
    """Desyncs found by marks, each with (source, seq) of the record that shows it."""

    @property
    def resumed_from(self) -> str | None:
        """Where the state that it resumed from came from, the farthest of its ranks."""
        return next((s for s in ("disk", "neighbour", "memory") if s in self.sources), None)

    @property
    def clean_ns(self) -> int | None:
        """Wall clock of the last look at which no number was in doubt; None: none is."""
        look = self.replicas.clean()
        found = [self.doubts.clean_ns(), None if look is None else look.at_ns]
        return min((at_ns for at_ns in found if at_ns is not None), default=None)

    @property
    def step(self) -> int:
        """Steps completed by the rank that is furthest."""
        return max([rank.step for rank in self.ranks.values()], default=0)


@dataclass(slots=True)
class NodeState:
    node_rank: int
    host: str
    pid: int
    local_world_size: int
    joined_ns: int = 0
    """When it joined, by the newest record then."""
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
    incident: int
    """Number of the incident that may come of it."""
    took_ns: int = 0
    """What it took, once the first node has answered."""
    suspicion: bool = False
    """Nothing had failed: the ranks were looked at because no progress was seen."""
    asked: set[int] = field(default_factory=set)
    """Nodes that were asked."""
    asked_ns: int = 0
    """When the last of them was."""
    waiting: set[int] = field(default_factory=set)
    """Those of them that have not answered yet."""


@dataclass(slots=True)
class StackRequest:
    """Somebody wants to see stacks; the run goes on."""

    command: o.ShowStacks
    taken_ns: int
    asked: set[int] = field(default_factory=set)
    """Nodes that were asked."""
    answers: dict[int, e.StacksTaken] = field(default_factory=dict)
    """By node."""


@dataclass(slots=True)
class SaveRequest:
    """Somebody wants a checkpoint; the run goes on."""

    request: str
    attempt: int
    failed: str = ""
    """Why it was not saved, in a rank's words."""


@dataclass(slots=True)
class RunState:
    """Everything known of a run."""

    judging: bool = True
    """False for one who only looks: what nothing but verdicts is made of is not kept."""
    run: e.RunStarted | None = None
    started_ns: int = 0
    wall_clocks: WallClocks = field(default_factory=WallClocks)
    last_ns: int = 0
    """Wall clock of the newest record."""
    incarnations: int = 0
    """Times a controller took charge."""
    stage: Stage = "gathering"
    stage_ns: int = 0
    """When the stage was entered."""
    nodes: dict[int, NodeState] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)
    gpus: dict[int, tuple[Gpu, ...]] = field(default_factory=dict)
    """By node: their health, by the newest word."""
    attempts: list[AttemptState] = field(default_factory=list)
    store: e.StoreReady | None = None
    """The store of the newest attempt."""
    store_failed: e.StoreFailed | None = None
    collections: list[Collection] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    checkpoints: dict[int, CheckpointMark] = field(default_factory=dict)
    """By step; a restore point once all ranks have saved it."""
    memory: dict[int, e.MemoryHeld] = field(default_factory=dict)
    """By node: what its agent holds of the ranks' state, by its last word."""
    memory_addresses: dict[int, str] = field(default_factory=dict)
    """By node: where other agents reach it."""
    mesh: e.MeshDeclared | None = None
    """As the lowest rank declared it; its coordinates are that rank's own."""
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    groups: dict[str, e.GroupCreated] = field(default_factory=dict)
    group_of: dict[str, dict[int, e.GroupCreated]] = field(default_factory=dict)
    """The same by name, and by rank in it: disjoint groups may share a name."""
    strikes: list[Strike] = field(default_factory=list)
    """Of hosts, those of earlier runs first."""
    faults: list[e.FaultInjected] = field(default_factory=list)
    commands: list[e.CommandTaken] = field(default_factory=list)
    stop: o.StopRun | None = None
    """The first accepted request to stop."""
    preempt: o.Preempt | None = None
    """The first accepted request to save and stop."""
    preempt_ns: int = 0
    """When it came."""
    save: SaveRequest | None = None
    """The newest accepted request for a checkpoint."""
    orders: dict[int, list[o.Order]] = field(default_factory=dict)
    """Orders given so far, by node, in order."""
    injects: list[o.Inject] = field(default_factory=list)
    """Accepted requests to do harm, in order; the first `injects_ordered` have been passed on."""
    injects_ordered: int = 0
    stack_requests: dict[str, StackRequest] = field(default_factory=dict)
    """Accepted requests for stacks that are not answered and shown yet, by their names."""
    notices: list[str] = field(default_factory=list)
    """Texts that were sent to screens."""
    told: set[str] = field(default_factory=set)
    """What they told of."""
    shut_down: set[int] = field(default_factory=set)
    """Nodes that were told that the run is over."""
    ended: e.RunEnded | None = None
    ended_ns: int = 0

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def strikes_by_host(self) -> dict[str, list[Strike]]:
        """Those that count now."""
        found: dict[str, list[Strike]] = {}
        window = 0.0 if self.run is None else self.run.policy.strike_window
        for strike in self.strikes:
            if strike.counts(self.last_ns, window):
                found.setdefault(strike.host, []).append(strike)
        return found

    @property
    def struck_out(self) -> set[str]:
        """Hosts to leave out where others can take their place."""
        limit = 0 if self.run is None else self.run.policy.quarantine
        by_host = self.strikes_by_host
        return {host for host, strikes in by_host.items() if 0 < limit <= len(strikes)}

    @property
    def newest_restore_point(self) -> CheckpointMark | None:
        """The newest checkpoint that every rank of the run has saved."""
        whole = [m for m in self.checkpoints.values() if m.whole_ns and not self._aside(m.path)]
        return max(whole, key=lambda mark: mark.step, default=None)

    def _aside(self, path: str) -> bool:
        """Whether a checkpoint was given another name, so that nobody loads it."""
        moved = (
            to for each in self.attempts for files in each.set_aside.values() for to in files.moved
        )
        return any(to.startswith(f"{path}.") for to in moved)

    @property
    def clean_restore_point(self) -> CheckpointMark | None:
        """The newest of them from before the first difference between replicas was seen."""
        clean_ns = None if self.attempt is None else self.attempt.clean_ns
        if clean_ns is None:
            return None
        whole = [m for m in self.checkpoints.values() if 0 < m.whole_ns <= clean_ns]
        return max(whole, key=lambda mark: mark.step, default=None)
