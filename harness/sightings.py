"""What can be seen of a process from outside: its state, its stack, its signs of work."""

from dataclasses import dataclass

from harness.incidents import Where
from harness.topology import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """From /proc: `state` is the letter in PID/status, `wchan` the kernel function slept in."""

    state: str
    wchan: str
    cpu_seconds: float
    rss_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTaken:
    """A Python thread of a rank besides the main one, and where it stands: in the user's code, or
    without any in a library."""

    name: str
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTaken:
    """A Python child of a rank. `frames` is its main thread's stack, innermost first."""

    pid: int
    name: str
    process: ProcessFacts | None
    frames: tuple[Frame, ...] = ()
    user_frame: Where | None = None
    missing: str = ""
    asleep_seconds: float | None = None
    """How long its sleep goes on, when its main thread is in one; nothing wakes it earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Signs of work of a rank and its children during `seconds` between two looks.

    `io_bytes` went through read and write, files, pipes and sockets alike; `log_bytes` are new
    output in its log, which was written to last `log_quiet_seconds` ago. `traced_by` is the pid
    of a debugger, 0 for none. `asleep_seconds` is how long the main thread's sleep goes on from
    the second look, None when it is in none. `starved_seconds` of `seconds` the main thread was
    ready to run and had no CPU.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    children_cpu_seconds: float = 0.0
    io_bytes: int = 0
    log_bytes: int = 0
    log_quiet_seconds: float = 0.0
    traced_by: int = 0
    asleep_seconds: float | None = None
    starved_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """TCP connections of a rank with one address, and what moved over them between two looks.

    `peers` are the ranks at the other end that are of the same node; none are known of another
    node. `pending_bytes` wait to be acknowledged. `unanswered`: nothing moved, and they have been
    sent again and again; `tries` is how often, at most, since the last answer.
    """

    local: str
    remote: str
    peers: tuple[int, ...] = ()
    connections: int = 1
    sent_bytes: int = 0
    """Acknowledged by the other end."""
    received_bytes: int = 0
    total_bytes: int = 0
    """All that they have carried so far, both ways."""
    pending_bytes: int = 0
    tries: int = 0
    unanswered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Connections of a rank with other ranks between two looks, those that nobody answers first."""

    seconds: float
    flows: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionInHand:
    """An exception that a rank's main thread is handling: in an `except` or `finally`, or on its
    way out of a `with`. `seen_ns` is when the rank's own heartbeat first saw it."""

    exc_type: str
    message: str
    where: Where | None
    seen_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """The main thread of one rank, and of its Python children; frames innermost first.

    `missing` says why there are no frames. `variables` stand beside the frames when local
    variables were asked for. `state` is the letter in PID/status, Z also when it is gone.
    """

    rank: int
    pid: int
    state: str
    frames: tuple[Frame, ...] = ()
    frames_by: str = ""
    user_frame: Where | None = None
    missing: str = ""
    variables: tuple[tuple[str, ...], ...] = ()
    children: tuple[ChildTaken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPlace:
    """Where a rank was at a mark: `seq` collectives of the group behind it."""

    rank: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCounter:
    """A variable of the program, by a hash of its name, and how far it is from its rhythm."""

    name: int
    drift: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSample:
    """A mark that all ranks of the node in a group of several nodes came to alike. `size` is that
    of the whole group; `ranks` are the node's. `counters` are those that all of its ranks have."""

    pg: str
    pg_desc: str
    size: int
    ranks: tuple[int, ...]
    kind: str
    key: int
    site: str
    count: int
    seq: int
    at_ns: int
    counters: tuple[MarkCounter, ...] = ()
    name: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestPart:
    """Tensors that ranks digest together, because the same ranks should have them in common.

    `part` is a number made of all that must be alike for digests to be comparable. `site`: what
    they are (parameters, gradients, optimizer state, buffers, variables). `how` says who declares
    `members`, global ranks as runs, to be equal (ddp, fsdp, zero, dtensor, hand: their gradients
    are summed over them by the program) or different (sharded); left: the gradients of all others
    of the optimizer are summed over them by the program; learnt: nobody, there are none.
    """

    part: int
    site: str
    how: str
    name: str
    """Of the tensor; of several, the first and the last one."""
    tensors: int
    ranks: tuple[int, ...]
    """Those of the node that have it."""
    members: Runs = ()
    axis: str = ""
    place: str = ""
    """Line of the program where variables are looked at, as `file:line:function`."""
    marks: tuple[str, ...] = ()
    """Words for what is known of a single tensor."""
    shape: tuple[int, ...] = ()
    """Of a single tensor."""
    clock: int = -1
    """The optimizer whose steps its looks count; -1: they are counted by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestRow:
    """Ranks that had the digest `value`, 64 bits, at look number `count` of `part`.

    `progress` goes on by as much on all ranks that do the same between two looks.
    """

    part: int
    count: int
    value: int
    ranks: tuple[int, ...]
    step: int
    at_ns: int
    progress: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigests:
    """Digests of each tensor of a part, as `ranks` had them at one look."""

    ranks: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """How a tensor lies in a rank's memory: type, bytes of an element, lengths and strides; these
    are None where only a copy has its elements in a row. Of a shard, the rank's own part."""

    dtype: str
    item: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSums:
    """What `ranks` had of one tensor at a look: 64-bit integers as bytes, in base64.

    `rows` are sums of its rows of words, `columns` those of the columns of all that was read with
    it, empty where they were not taken; or else `words` of the buckets that were asked for.
    """

    ranks: tuple[int, ...]
    rows: str = ""
    columns: str = ""
    words: str = ""
    why: str = ""
    """Why there is nothing, in words."""
    referee: str = ""
    """Whether their update of these words was right or wrong, or that it is unknown; empty where
    nobody was asked to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A check of a rank's own numbers that came out bad, see docs/masked.md.

    `check`: gradient (not finite before it was reduced), norm (of a gradient, far above all
    before), recompute (a checkpointed block gave other outputs when it was computed again), replay
    (numbers of a micro-batch of `peer`, computed again, are others), at rest (the rank's own
    shard changed between two steps), update (of a parameter by the optimizer: it came out otherwise
    when it was computed again), loss (that the script tells is above `bound` and stays there).
    """

    check: str
    subject: str
    """The module, parameter or set of tensors."""
    step: int
    """Steps completed by then."""
    at_ns: int
    """Wall clock."""
    clean_ns: int = 0
    """Wall clock of the last check of this kind that was good; 0: there was none."""
    count: int = 0
    """Of the look; the same number is the same look on all ranks."""
    looks: int = 1
    """Checks of the subject so far, this one among them, of which `failed` came out bad."""
    failed: int = 1
    settled: bool = True
    """False: it is being checked again, and there will be another word."""
    peer: int = -1
    ring: int = 0
    """Ranks of which each computes a micro-batch of another."""
    again: str = ""
    """What a third computation agreed with: first, second, neither; empty where there was none."""
    tensors: tuple[str, ...] = ()
    """Some of those concerned, the first one first."""
    differ: int = 0
    """How many of them, of `total`."""
    total: int = 0
    shows: str = ""
    """The numbers, in words."""
    bound: float = 0.0
    """Of a loss."""


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
class RankArrivals:
    """When a rank entered collectives: four columns of one length, in the rank's own order.

    `records` numbers the rank's own operations (a gap: some are left out), `groups` are positions
    in the event's `groups`, `seqs` count in that group, `entered_us` are microseconds after the
    event's `base_ns`. `peers` are global ranks it has sent to or received from.
    """

    rank: int
    records: tuple[int, ...]
    groups: tuple[int, ...]
    seqs: tuple[int, ...]
    entered_us: tuple[int, ...]
    calls: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a rank holds. `memory_bytes` is memory of its own, without pages of files and what it
    shares; `fd_limit` is the soft limit, 0 when there is none. `step` and `collectives` are those
    of its pulse page at that moment."""

    rank: int
    fds: int
    fd_limit: int
    memory_bytes: int
    step: int = 0
    collectives: int = 0
