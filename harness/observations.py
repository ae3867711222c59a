"""Events of what agents see of their ranks, when asked and by themselves. Part of the one union in
`harness.events`."""

from dataclasses import dataclass

from harness.collectives import Collective, GroupCreation, PointToPoint
from harness.incidents import Where
from harness.sightings import (
    Activity,
    ChildTaken,
    DigestPart,
    DigestRow,
    Doubt,
    ExceptionInHand,
    Frame,
    MarkPlace,
    MarkSample,
    ProcessFacts,
    Pulse,
    RankStack,
    TensorDigests,
    TensorShape,
    TensorSums,
    ThreadTaken,
    Traffic,
)


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
    threads: tuple[ThreadTaken, ...] = ()
    """Other Python threads, a few of them."""
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
    traffic: Traffic | None = None
    """TCP between the two looks; None where it was not looked at, or the kernel does not tell."""
    branches: tuple[str, ...] = ()
    """`file:line: source` of conditions on the rank that its main thread stands below."""
    listens: tuple[str, ...] = ()
    """Addresses at which other ranks connected to it, as Gloo writes them: `[127.0.0.1]:5553`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceOfNode:
    """The same of ranks of one node together, for runs of many: what they have in common is told
    once (harness.packing)."""

    node_rank: int
    taken: tuple[EvidenceTaken, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFlaw:
    """Something is wrong with checkpoint files below a watched folder, as the files show it.

    `kind`: torn (ends too soon), damaged, rewritten (other bytes than when it was finished),
    incomplete (a part of a set is missing), mixed (parts of different steps), early (a pointer that
    was moved before what it points at was whole), refused (a rank that was to load it found other
    bytes than were saved), or mended: nothing is wrong with `path` any more.
    """

    node_rank: int
    kind: str
    path: str
    why: str = ""
    step: int | None = None
    aside: tuple[str, ...] = ()
    """What must have another name before anybody resumes; nothing where no older one is there."""
    like: tuple[str, ...] = ()
    """Of a part that is missing: those of another step, which the same rank wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksDiffer:
    """Ranks came to the same `count`-th mark of their program with different numbers of
    collectives of a group behind them, and so ever since.

    `kind`: step (of an optimizer), backward (pass) or forward (of a wrapped model in training),
    all from the call chain that begins at `site`. `agreed` counts before it were alike. `name` and
    `value` are a variable of the program at that mark, alike on all of `places`; empty when the
    program has none. `odd` are the ranks that left the common order, all of them where that cannot
    be told (`tied`). `op` is what the group carries there, where that is known, and `left_out` the
    line that the odd ranks did not come through, or came through alone.

    `steps` is not 0 where no collective was left out, for the backward passes agree: the odd ranks
    have made so many optimizer steps fewer than the others (negative: more).
    """

    node_rank: int
    pg: str
    pg_desc: str
    kind: str
    site: str
    count: int
    places: tuple[MarkPlace, ...]
    odd: tuple[int, ...]
    tied: bool
    agreed: int
    count_before: int
    """The last count at which all were alike; of several nodes not all counts are compared."""
    seen_ns: int
    name: str = ""
    value: int = 0
    value_before: int = 0
    """What it was at `count_before`."""
    steps: int = 0
    op: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksSampled:
    """Marks at counts that all nodes tell, about one a second."""

    node_rank: int
    samples: tuple[MarkSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestsRead:
    """Digests of a node's ranks since the last report, and the parts that are new in them."""

    node_rank: int
    rows: tuple[DigestRow, ...]
    parts: tuple[DigestPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestsTold:
    """Tensor by tensor, what the node's ranks had of `part` at look `count`.

    `names` and `values` go together; empty where the node no longer knows.
    """

    node_rank: int
    attempt: int
    part: int
    count: int
    names: tuple[str, ...]
    ranks: tuple[TensorDigests, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedClosely:
    """What ranks of the node had, or have, of tensor `name` of `part`, where look `suspect` has
    shown a difference.

    `count` is the look that it is from: `suspect` itself, or a later one when `buckets` are those
    whose words were asked for.
    """

    node_rank: int
    attempt: int
    part: int
    suspect: int
    name: str
    count: int
    sums: tuple[TensorSums, ...]
    shape: TensorShape | None = None
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtRaised:
    """A rank has found a fault in its own numbers."""

    rank: int
    doubt: Doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCertified:
    """The manifest of a checkpoint says now who vouches for it; `why` in words when it could not
    be written."""

    node_rank: int
    step: int
    path: str
    why: str = ""
