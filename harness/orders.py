"""THE definition of all that can be asked: orders (controller to agent) and commands (to the
controller). Frozen, slotted, keyword-only; one union each."""

from dataclasses import dataclass

from harness.faults import Fault
from harness.holdings import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStore:
    """Host the rendezvous store of `attempt` outside the ranks; answer StoreReady or StoreFailed.

    `port` 0 means any free one.
    """

    attempt: int
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """Words of a tensor that `rank` tells after each step that it looks at closely: there two ranks
    of an earlier attempt differed, seen at look `suspect` of `part`. `clock` is the optimizer."""

    part: int
    suspect: int
    site: str
    clock: int
    name: str
    rank: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another node of the attempt: `size` ranks from `first_rank` on, whose agent is reached by
    other agents at `address`."""

    first_rank: int
    size: int
    address: str

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Start the local ranks `first_rank .. first_rank + local_world_size - 1` of `attempt`."""

    attempt: int
    first_rank: int
    local_world_size: int
    world_size: int
    node_rank: int
    nnodes: int
    master_addr: str
    master_port: int
    max_restarts: int
    checkpoint_interval: float | None = None
    """Seconds between saves, told to the workers; 0: the script decides; None: nothing is told."""
    memory: MemoryPlan | None = None
    """What to do with the ranks' state in memory; None in journals that did not say."""
    spike_step: int = -1
    """Where an earlier attempt has seen the loss go up to stay, -1: nowhere; and the loss above
    which it had."""
    spike_bound: float = 0.0
    closely: int = 0
    """Steps, from the first one of the attempt, at which ranks look at all their numbers: they may
    tell which of two was wrong in an earlier attempt."""
    reread: Reread | None = None
    neighbours: tuple[Neighbour, ...] = ()
    """Whose ranks compute micro-batches of this node's ranks again, as far as its agent knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectEvidence:
    """Take stacks, flight records, process facts and last log lines of all local ranks.

    Answered by one EvidenceTaken per rank, or EvidenceOfNode, and one EvidenceComplete per node.
    """

    collection: int
    attempt: int
    why: str
    apart: float = 0.0
    """Least seconds between the two looks at a rank's progress. 0: no longer than the rest takes,
    and only at what costs nothing."""
    last_resort: bool = True
    """Whether a rank whose stack cannot be had otherwise may get a signal that makes it write one:
    that interrupts a system call, so only where ranks have failed or are judged stuck."""
    incident: int = 0
    """Number of the incident that would come of it, under which files are kept; 0: the one after
    `collection`, as older journals had it."""
    most: int = 64
    """Newest entries of each record to tell of."""
    suspicion: bool = False
    """Only no progress was noticed: nothing has failed, the run goes on."""
    together: bool = False
    """Ranks of a node are told of together, and the node has no other news until they are: in runs
    of thousands a message costs more than a little delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeStacks:
    """Take the stacks of local ranks, of all when `ranks` is empty; answered by one StacksTaken.

    Opens no incident and disturbs nobody.
    """

    request: str
    ranks: tuple[int, ...] = ()
    with_locals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAtStep:
    """Have all local ranks find out in `harness.should_stop` that they stop at `step`.

    Not `agreed`: ranks that come there wait; answered by StopStepTaken, and another step may
    follow. `agreed`: every rank of the run knows the step; those that come there stop.
    """

    attempt: int
    step: int
    agreed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAtStep:
    """Have all local ranks find out in `harness.should_save` that they save at `step`, and go on.

    Agreed to as StopAtStep is; answered by SaveStepTaken. `step` -1 only asks how far they are.
    """

    attempt: int
    step: int
    agreed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkers:
    """Stop all local workers: SIGTERM (after SIGCONT), `grace` seconds, SIGKILL to their sessions.

    Answered by WorkersStopped when no process of theirs is left. `grace` 0 kills at once.
    """

    attempt: int
    grace: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Give checkpoint files other names, so that a script that takes the newest one takes the one
    before; answered by FilesSetAside. No file is deleted. `good` are files to be counted on, of
    which is said which are there no more."""

    attempt: int
    paths: tuple[str, ...]
    suffix: str
    good: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TellDigests:
    """Tell the digests of each tensor of `part` at look `count`; answered by DigestsTold."""

    attempt: int
    part: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookClosely:
    """Tell what `ranks` had of tensor `name` of `part` at look `count`: the sums of its rows.

    With `buckets`: the words of those rows instead, as they are at one of the next steps that
    `stride` divides; with `referee` the agent also computes the optimizer's update of the first of
    them, from what went into it, and tells whether the rank's is right. Answered by LookedClosely,
    of each rank at its own time.
    """

    attempt: int
    part: int
    count: int
    name: str
    ranks: tuple[int, ...]
    buckets: tuple[int, ...] = ()
    stride: int = 1
    referee: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyCheckpoint:
    """Write into the checkpoint's manifest that `by` vouches for it; answered by
    CheckpointCertified."""

    step: int
    path: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldCheckpoint:
    """Have retention leave a checkpoint alone while `attempt` lasts: numbers are suspected that may
    have been saved since."""

    attempt: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepMemory:
    """Write the generation of `step` that `attempt` staged as a checkpoint, before it is lost;
    answered by MemoryKept.

    This node writes the parts of `ranks`; those of `lost` exist nowhere, `twins` hold the same
    parts and stand in. Nodes that write together have the same `token`. `failed` is the attempt
    that has come to its end.
    """

    failed: int
    attempt: int
    step: int
    ranks: tuple[int, ...]
    world_size: int
    token: str
    lost: tuple[int, ...] = ()
    twins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectFault:
    """Do `fault` to a local rank; answered by FaultInjected when the harm is done."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Print `text` on the node's stderr (incident cards, run-level messages).

    `request` is the request for stacks that it answers, if it does.
    """

    text: str
    request: str = ""
    about: str = ""
    """What it tells of; nothing is told twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """The run is over: leave no process behind and exit with `exit_code`."""

    exit_code: int
    reason: str


Order = (
    HostStore
    | StartWorkers
    | CollectEvidence
    | TakeStacks
    | StopAtStep
    | SaveAtStep
    | StopWorkers
    | SetAside
    | TellDigests
    | LookClosely
    | CertifyCheckpoint
    | HoldCheckpoint
    | KeepMemory
    | InjectFault
    | Notify
    | Shutdown
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """Stop the run. `signal` is the one the launcher got (SIGINT 2, SIGTERM 15), 0 for a request
    by a view; it settles the exit code."""

    why: str
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """The machines are wanted for something else: save, all ranks at one step, then stop."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNow:
    """Save a checkpoint, all ranks at one step, and go on. `request` is any text that names this
    request."""

    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRun:
    """Stop all workers and start them again, from the newest restore point."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inject:
    """Do a fault on purpose. Refused unless the run was started with `--chaos-allowed`."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStacks:
    """Take the stacks of `ranks` (empty: all) while the run goes on.

    `request` is any text that names this request. `show_on` is a node on whose stderr the stacks
    are printed; -1: nowhere, the asker reads the StacksTaken events.
    """

    request: str
    ranks: tuple[int, ...] = ()
    with_locals: bool = False
    show_on: int = -1


Command = StopRun | Preempt | SaveNow | RestartRun | Inject | ShowStacks
