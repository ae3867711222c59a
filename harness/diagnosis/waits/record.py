"""What one rank's records say about its waits, from whatever source: a dump of any job, or live
evidence of a run. Everything but `rank` may be missing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.collectives import GroupCreation, Terms
from harness.incidents import EvidenceRef, Where
from harness.sightings import ProcessFacts

ALONE = "a group of its own"
"""Role of a group that no other rank is in: what is called there concerns nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as one of its members knows it.

    `ranks` are global ranks in group order, None where the record does not tell. The name alone
    identifies nothing: it can be a counter that differs from group to group of one role, and two
    groups of one name can exist beside each other.
    """

    name: str
    desc: str
    ranks: tuple[int, ...] | None = None
    role: str = field(init=False, compare=False, repr=False)
    """What it is to its members: `desc`, or that no other rank is in it; empty when nobody says."""

    def __post_init__(self) -> None:
        alone = self.ranks is not None and len(self.ranks) == 1
        object.__setattr__(self, "role", ALONE if alone else self.desc if self.described else "")

    def __hash__(self) -> int:
        return hash(self.name)  # thousands of ranks are not hashed again and again

    @property
    def described(self) -> bool:
        """Whether the program has said what it is for."""
        return self.desc not in ("", "undefined")

    @property
    def label(self) -> str:
        """Its role, or its name where it has none."""
        return self.desc if self.described else f"group {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What all members of a group must agree on at one sequence number.

    `sizes` and `dtypes` are those of the inputs; empty for operations whose inputs may differ from
    member to member.
    """

    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`all_reduce 100x16 float`."""
        sizes = "+".join("x".join(map(str, shape)) or "scalar" for shape in self.sizes)
        kinds = ",".join(sorted(set(self.dtypes))).lower()
        return " ".join(part for part in (self.op, sizes, kinds) if part)


Step = tuple[str, Call]
"""A call, and the role of its group or the rank at its other end."""


def end_of(rank: int) -> str:
    """How a step names the rank at its other end."""
    return f"rank {rank}"


# One that may be changed is made in a third of the time, and there are tens of thousands.
@dataclass(slots=True, kw_only=True)
class Pending:
    """An operation that has been called and has not finished.

    `seq` is the place in the group (for point-to-point, the rank's own count there). `peers` are
    the global ranks at the other end of a point-to-point operation, several for a receive from
    anybody; empty for a collective. Operations of one `batch` wait together.
    """

    group: Group
    seq: int
    call: Call
    created_ns: int = 0
    peers: tuple[int, ...] = ()
    send: bool = False
    batch: int = -1
    where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A rank's collectives in one group: `calls[i]` is that of sequence number `first + i`, None
    where the record has a gap. All up to `completed` have finished; -1 for none so far.
    `sites[i]` is the user's line of that call, empty where it was not noted; no lines at all where
    none was. Members may rightly call from different lines, so lines are not compared with
    calls."""

    first: int = 0
    calls: tuple[Call | None, ...] = ()
    enqueued: int = -1
    completed: int = -1
    sites: tuple[str, ...] = field(default=(), compare=False)
    terms: Mapping[int, Terms] = field(default_factory=dict, compare=False)
    """By sequence number, what the call named besides, where the rank has noted it."""

    def at(self, seq: int) -> Call | None:
        at = seq - self.first
        return self.calls[at] if 0 <= at < len(self.calls) else None

    def site(self, seq: int) -> str:
        at = seq - self.first
        return self.sites[at] if 0 <= at < len(self.sites) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A group whose creation this rank has begun and not ended."""

    ranks: tuple[int, ...]
    desc: str = ""
    began_ns: int = 0
    name: str = ""
    """Empty when it has none yet."""


Begun = tuple[str, tuple[int, ...]]
"""Name and global ranks of a group whose creation has begun; one object for all ranks that tell of
it alike."""
P2pKey = tuple[int, bool, str]
"""Peer (global rank), whether it is a send, and name of the group (or group and tag)."""


@dataclass(slots=True, kw_only=True)
class RankWait:
    """One rank. `pending` is in the order of its calls: the first is what it waits in.

    `posted` counts its point-to-point operations per peer from the first on; it is None where the
    record does not reach back that far. `program` holds its last calls over all groups in order,
    each with the role of its group. `progressed` compares two samples; None with only one.
    """

    rank: int
    pending: tuple[Pending, ...] = ()
    tracks: Mapping[Group, Track] = field(default_factory=dict)
    posted: Mapping[P2pKey, int] | None = None
    whole: bool = False
    """The record holds everything since the start."""
    cut: bool = False
    """It begins amid operations that are pending: what the rank stands in may be older."""
    program: tuple[Step, ...] = ()
    order: tuple[tuple[str, int], ...] = ()
    """The same calls by the role of the group and their number there; without those that no other
    rank takes part in."""
    course: tuple[Step, ...] = ()
    """Its last calls over all groups and messages to single ranks, in order, up to the one that it
    waits in; empty where it sends none."""
    last_where: Where | None = None
    """The user's line of its last call."""
    creating: Creation | None = None
    meeting: GroupCreation | None = None
    """The innermost of the creations that it is in: whom its program wants to meet."""
    process: ProcessFacts | None = None
    doing: Where | None = None
    """The user's line its main thread is at, when a stack was taken."""
    stack: tuple[str, ...] = ()
    """`file:function` of its frames, innermost first, when a stack was taken."""
    progressed: bool | None = None
    evidence: EvidenceRef | None = None
    blocked: bool = True
    """Whether it stands in what it has pending; False when its main thread is seen elsewhere."""
    ended: str = ""
    """How its process ended, when it left without an error."""
    made: tuple[Begun, ...] = ()
    """Groups whose creation it has begun, oldest first."""
    apart: tuple[str, ...] = ()
    """Conditions on the rank that it stands below, as `file:line: source`."""

    @property
    def head(self) -> Pending | None:
        return self.pending[0] if self.pending and self.blocked else None

    @property
    def oldest(self) -> Pending | None:
        """Its first operation that has not finished, whether it waits for it or not."""
        return self.pending[0] if self.pending else None

    @property
    def frozen(self) -> bool:
        """Its process is stopped or in an uninterruptible sleep: it takes part in nothing."""
        return self.process is not None and self.process.state in ("T", "t", "D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """All ranks that left a record. `unreadable` ranks left one that cannot be used."""

    world_size: int
    ranks: Mapping[int, RankWait]
    unreadable: frozenset[int] = frozenset()
    unasked: frozenset[int] = frozenset()
    """Ranks that nobody has looked at (yet), of which nothing is claimed: they are in no operation,
    and no operation lacks them."""
    shown_by: Callable[[int], EvidenceRef | None] | None = None
    """Where the waits of a rank are to be seen, when its own record does not say."""

    def ref(self, rank: int) -> EvidenceRef | None:
        """Where the waits of `rank` are to be seen."""
        wait = self.ranks.get(rank)
        if wait is None or wait.evidence is not None or self.shown_by is None:
            return None if wait is None else wait.evidence
        return self.shown_by(rank)
