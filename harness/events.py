"""THE definition of all that can happen in a run. Every journal line is one of these.

Facts come from agents (source `agent:N`), decisions from the controller (source `controller`).
Frozen, slotted, keyword-only; one union, matched with `assert_never`. Adding a field needs a
default, so that old journals stay readable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.agreements import SaveStepTaken as SaveStepTaken
from harness.agreements import StopStepTaken as StopStepTaken
from harness.devices import GpuFailed as GpuFailed
from harness.devices import GpusRead as GpusRead
from harness.faults import Fault
from harness.holdings import MemoryHeld as MemoryHeld
from harness.holdings import MemoryKept as MemoryKept
from harness.holdings import MemoryServed as MemoryServed
from harness.incidents import Incident, Outcome, Where
from harness.incidents import IncidentSettled as IncidentSettled
from harness.membership import HostStruck as HostStruck
from harness.membership import NodesAwaited as NodesAwaited
from harness.membership import Regrouping as Regrouping
from harness.membership import Strike
from harness.observations import CheckpointCertified as CheckpointCertified
from harness.observations import CheckpointFlaw as CheckpointFlaw
from harness.observations import DigestsRead as DigestsRead
from harness.observations import DigestsTold as DigestsTold
from harness.observations import DoubtRaised as DoubtRaised
from harness.observations import EvidenceComplete as EvidenceComplete
from harness.observations import EvidenceOfNode as EvidenceOfNode
from harness.observations import EvidenceTaken as EvidenceTaken
from harness.observations import LookedClosely as LookedClosely
from harness.observations import MarksDiffer as MarksDiffer
from harness.observations import MarksSampled as MarksSampled
from harness.observations import StacksTaken as StacksTaken
from harness.orders import Command, Order
from harness.policy import Policy
from harness.setups import SetupsRead as SetupsRead
from harness.sightings import Pulse, RankArrivals, Vitals
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
    checkpoint_interval: float | None = None
    """Seconds between saves that its workers are told; 0: the script decides."""
    memory_attempt: int = -1
    memory_step: int = -1
    """Its workers go on from this generation in memory; -1: from none."""


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
    torn: tuple[str, ...] = ()
    """Checkpoint files that it had begun to write and that are not whole."""


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
class CheckpointFile:
    """What a script does with a checkpoint file of its own, without a word to Harness.

    `what`: opened (for writing), saving (by torch.save), saved, save_failed, loaded, load_failed.
    `step` is what the checkpoint itself says; `bytes` the size of the file then.
    """

    rank: int
    what: str
    path: str
    step: int | None = None
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    older: str = ""
    """Of one that was read, or could not be: that of the same name with the next smaller number."""
    flaw: str = ""
    """Of a file that could not be loaded: what is wrong with it, as far as its agent can see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSetAside:
    """Bad checkpoint files have other names now, `moved`; `gone` are good ones that are gone."""

    node_rank: int
    attempt: int
    moved: tuple[str, ...]
    failed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoaded:
    rank: int
    step: int
    path: str
    seconds: float = 0.0
    """What the load took; 0 when the script does not say."""
    source: str = ""
    """disk, memory (of the rank's own node) or neighbour (memory of another one), if it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """Nothing was saved at this step; training goes on. `why` is in words."""

    rank: int
    step: int
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsLost:
    """The worker had more to say than its link could carry."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsesRead:
    """The pulses of a node's ranks that changed since the last report; also its sign of life."""

    node_rank: int
    pulses: tuple[Pulse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalsRead:
    """Arrivals of a node's ranks that are new since the last report. `base_ns` is wall clock.

    `ops` holds, for each of `groups`, the newest operation there.
    """

    node_rank: int
    base_ns: int
    groups: tuple[str, ...]
    ops: tuple[str, ...]
    ranks: tuple[RankArrivals, ...]
    calls: tuple[str, ...] = ()
    """What was called, with numbers of elements and types where all members must have them alike;
    the ranks' `calls` are positions in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalsRead:
    """Vitals of a node's ranks that have changed. `memory_available_bytes` is what the node, or
    the limit of its container, has left."""

    node_rank: int
    vitals: tuple[Vitals, ...]
    memory_available_bytes: int


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
    exchanged_bytes: int = 0
    """Of ranks that all stand in one operation: all that their connections with each other have
    carried so far."""
    quiet_ns: int = 0
    """Since when looks have found that to be the same."""
    wakes_ns: int = 0
    """When the one of `ranks` wakes by itself; 0 where it does not sleep until a point in time."""


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
    | CheckpointFile
    | FilesSetAside
    | CheckpointFailed
    | CheckpointFlaw
    | StopStepTaken
    | SaveStepTaken
    | MemoryServed
    | MemoryHeld
    | MemoryKept
    | FactsLost
    | PulsesRead
    | ArrivalsRead
    | VitalsRead
    | GpusRead
    | GpuFailed
    | SetupsRead
    | EvidenceTaken
    | EvidenceOfNode
    | EvidenceComplete
    | StacksTaken
    | MarksDiffer
    | MarksSampled
    | DigestsRead
    | DigestsTold
    | LookedClosely
    | DoubtRaised
    | CheckpointCertified
    | StallLooked
    | OrderGiven
    | CommandTaken
    | FaultInjected
    | IncidentOpened
    | IncidentClosed
    | IncidentSettled
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
