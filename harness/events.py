"""THE definition of all that can happen in a run. Every journal line is one of these.

Facts come from agents (source `agent:N`), decisions from the controller (source `controller`).
Frozen, slotted, keyword-only; one union, matched with `assert_never`. Adding a field needs a
default, so that old journals stay readable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.collectives import Collective, GroupCreation, PointToPoint
from harness.faults import Fault
from harness.incidents import Incident, Outcome, Where
from harness.membership import HostStruck as HostStruck  # noqa: PLC0414 - all events are here
from harness.membership import NodesAwaited as NodesAwaited  # noqa: PLC0414
from harness.membership import Regrouping as Regrouping  # noqa: PLC0414
from harness.membership import Strike
from harness.orders import Command, Order
from harness.policy import Policy
from harness.sightings import (
    Activity,
    ChildTaken,
    ExceptionInHand,
    Frame,
    ProcessFacts,
    RankStack,
)
from harness.topology import NodeRanks

# --- the run and its processes -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """First event of a journal."""

    run: str
    command: tuple[str, ...]
    """Script and its arguments as given."""
    nnodes: int
    policy: Policy
    chaos_allowed: bool
    harness_version: str
    master_port: int = 0
    """Port the user asked the rendezvous store to have; 0 for any."""
    master_addr: str = "127.0.0.1"
    run_dir: str = ""
    """As the user would type it; empty in journals that did not say."""
    min_nodes: int = 0
    """Least nodes to go on with; 0: all `nnodes`, and none is waited for in place of a lost one."""
    spares: int = 0
    """Nodes that may join beyond `nnodes` and wait."""
    grow: bool = True
    """Whether the run is stopped for nodes that join later."""
    strikes: tuple[Strike, ...] = ()
    """Of earlier runs, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted:
    """A controller took charge; `incarnation` 0 is the first, more mean it was restarted."""

    pid: int
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined:
    node_rank: int
    host: str
    pid: int
    local_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLost:
    """The node's agent died or fell silent; its workers died with it."""

    node_rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteReady:
    """The node can fork ranks; `seconds` is what its imports took."""

    node_rank: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteUnused:
    """Ranks of this node are started as fresh processes, and why."""

    node_rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReady:
    attempt: int
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """All workers of `attempt` are being launched (0-based)."""

    attempt: int
    world_size: int
    nodes: tuple[NodeRanks, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStopped:
    """No process of the node's workers of `attempt` is left."""

    node_rank: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    outcome: str
    """succeeded, failed or stopped."""
    exit_code: int
    reason: str


# --- a worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    rank: int
    local_rank: int
    node_rank: int
    pid: int
    launched_by: str
    """zygote or fresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRaised:
    """An exception reached the top of the script. Stamped in the worker when it was raised.

    `collectives` counts what the rank had recorded by then (0: it never reached a collective).
    """

    rank: int
    exc_type: str
    message: str
    where: Where | None
    traceback: str
    raised_ns: int
    collectives: int
    step: int
    cause: str = ""
    """Type and message of the innermost `__cause__`/`__context__`, when there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """The worker process is gone. Exactly one of `exit_code` and `signal` is set.

    `ordered` is true when the agent itself had told it to stop. `oom` is a sentence when the
    kernel's or the cgroup's own counters say that memory ran out. `error_file` is the content of
    the file that `@record` writes.
    """

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    exited_ns: int
    ordered: bool
    max_rss_bytes: int = 0
    oom: str | None = None
    error_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """init, step, checkpoint, eval or teardown."""

    rank: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshDeclared:
    """The rank made a DeviceMesh over the whole world. `coordinates` follow `names`."""

    rank: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinates: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCreated:
    """A process group; reported by its lowest rank only."""

    rank: int
    pg: str
    pg_desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    rank: int
    step: int
    path: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoaded:
    rank: int
    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStepTaken:
    """The node's ranks have been told that they may have to stop at `step`.

    `furthest` is the last step at which one of them asked whether to stop; `missed`: one had asked
    at `step` or a later one before it was told.
    """

    node_rank: int
    attempt: int
    step: int
    furthest: int
    missed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsLost:
    """The worker had more to say than its link could carry."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a rank's pulse page holds. `step` counts completed optimizer steps.

    `heartbeat_ns` is the monotonic clock of the worker's node; `step_ns` the wall clock when
    `step` was completed.
    """

    rank: int
    step: int
    phase: str
    heartbeat_ns: int
    step_ns: int = 0
    loss: float | None = None
    loss_finite: bool = True
    """False when the loss is NaN or infinite; `loss` is None then, JSON has no such numbers."""
    tokens: int = 0
    total_steps: int = 0
    collectives: int = 0
    """Collectives and point-to-point operations begun, over all groups: progress of a script
    without an optimizer too. Read four times a second."""
    asked_stop: int = -1
    """Last step at which the script asked whether to stop; -1: it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsesRead:
    """The pulses of a node's ranks that changed since the last report; also its sign of life."""

    node_rank: int
    pulses: tuple[Pulse, ...]


# --- evidence ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken:
    """What could be seen of one rank. `missing` says in words what could not, and why.

    `frames` is the main thread's stack, innermost first; `frames_by` names the tool that took it.
    `files` are the raw dumps, relative to the run directory.
    """

    collection: int
    rank: int
    process: ProcessFacts | None
    frames: tuple[Frame, ...] = ()
    frames_by: str = ""
    user_frame: Where | None = None
    collectives: tuple[Collective, ...] = ()
    """The last entries of the flight record, oldest first."""
    last_lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    p2p: tuple[PointToPoint, ...] = ()
    """The newest point-to-point operations and all open ones, oldest first."""
    groups: tuple[GroupCreation, ...] = ()
    """The rank's own process groups, and those it is still creating, oldest first."""
    children: tuple[ChildTaken, ...] = ()
    """Its Python children: data loaders and the like."""
    record_age: float | None = None
    """Of a rank that died without a word: seconds between `collectives` and its end."""
    pulse: Pulse | None = None
    """Its pulse page at the first look."""
    advanced: bool | None = None
    """Whether any counter of its progress moved between two looks `looked_apart` seconds apart;
    None when there was no second one."""
    cpu_delta: float | None = None
    """CPU seconds that the process used between the two looks."""
    looked_apart: float = 0.0
    activity: Activity | None = None
    """What the rank did between the two looks besides communicating."""
    handling: ExceptionInHand | None = None
    """The exception that its main thread was handling."""
    branches: tuple[str, ...] = ()
    """`file:line: source` of conditions on the rank that its main thread stands below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceComplete:
    collection: int
    node_rank: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksTaken:
    """The stacks of a node's ranks, because somebody asked."""

    request: str
    node_rank: int
    stacks: tuple[RankStack, ...]
    seconds: float


# --- decisions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLooked:
    """No progress was suspected, evidence was taken, and it does not make a verdict (yet).

    `why` says what was seen. `ranks` are those that all others wait for, `place` is where they
    are; looked at again at `again_ns` unless all have moved on before.
    """

    collection: int
    why: str
    again_ns: int
    ranks: tuple[int, ...] = ()
    place: str = ""
    settled: bool = True
    """False: time alone is missing; the same evidence is judged again at `again_ns`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderGiven:
    """The controller told the agent of `node_rank` to do `order`."""

    node_rank: int
    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTaken:
    """Somebody asked for something; `accepted` or not, and why."""

    command: Command
    by: str
    accepted: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected:
    """Harm was done on purpose."""

    fault: Fault
    pid: int
    injected_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOpened:
    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentClosed:
    incident_id: int
    outcome: Outcome
    lost_steps: int | None


Event = (
    RunStarted
    | ControllerStarted
    | AgentJoined
    | AgentLost
    | ZygoteReady
    | ZygoteUnused
    | StoreReady
    | StoreFailed
    | AttemptStarted
    | NodesAwaited
    | Regrouping
    | HostStruck
    | WorkersStopped
    | RunEnded
    | WorkerStarted
    | WorkerRaised
    | WorkerExited
    | PhaseChanged
    | MeshDeclared
    | GroupCreated
    | CheckpointSaved
    | CheckpointLoaded
    | StopStepTaken
    | FactsLost
    | PulsesRead
    | EvidenceTaken
    | EvidenceComplete
    | StacksTaken
    | StallLooked
    | OrderGiven
    | CommandTaken
    | FaultInjected
    | IncidentOpened
    | IncidentClosed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When and by whom. `seq` counts per `source` from 0: a gap is visible loss.

    `wall_ns` is time.time_ns, `mono_ns` time.monotonic_ns of the source's node.
    """

    run: str
    attempt: int
    source: str
    seq: int
    wall_ns: int
    mono_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stamped event: one line of the journal, one message on the wire."""

    stamp: Stamp
    event: Event
    extra: Mapping[str, str] = field(default_factory=dict)
    """Room for what a newer version wrote; never read by decisions."""
