"""One recorded collective or point-to-point operation, whatever the backend."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What no flight record keeps of a collective, and all members must agree on.

    `root` is the group rank of its source or destination, -1 for none. `sent` and `received` are
    the elements that an all-to-all sends to each member, in group order, and those that it has room
    for.
    """

    root: int = -1
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An entry of a rank's flight record.

    `record_id` orders the rank's own entries; `seq_id` is the position in the process group `pg`
    (the same on all its members). `pg_desc` is the group's role, for example `mesh_dp`.
    `sizes` are the input shapes. `state` is scheduled, started or completed; Gloo never leaves
    `scheduled`, so `retired` tells whether it has finished there (also when it failed).
    """

    record_id: int
    pg: str
    pg_desc: str
    seq_id: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int
    site: str = ""
    """`file:line:function` of the user's call, where the rank has noted it."""
    terms: Terms | None = None
    """What else the call named, where the rank has noted it."""

    @property
    def done(self) -> bool:
        """Whether it has finished."""
        return is_done(self.op, self.state, retired=self.retired)


def is_done(op: str, state: str, *, retired: bool) -> bool:
    """Whether an operation so recorded has finished. Gloo knows `retired`, NCCL `completed`."""
    return retired if op.startswith("gloo:") else state == "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What entries of a flight record may have in common, as fields of `Collective`."""

    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    site: str = ""
    terms: Terms | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """What thousands of ranks record alike: columns of one length, an entry of the record each.

    `groups` are positions in `descs`, one for each group of a rank, and `kinds` such in `of`. Two
    are the same only when they are one object, so that what follows from one is worked out once.
    """

    records: tuple[int, ...]
    seqs: tuple[int, ...]
    groups: tuple[int, ...]
    kinds: tuple[int, ...]
    descs: tuple[str, ...]
    of: tuple[Kind, ...]


class Recorded(Sequence[Collective]):
    """The entries of one rank's record, made one by one only when somebody looks at them: what it
    has in common with other ranks, the names of its own groups, and when each entry began, as
    nanoseconds since the one before it."""

    __slots__ = ("_entries", "apart_ns", "columns", "names")

    def __init__(self, columns: Columns, names: tuple[str, ...], apart_ns: tuple[int, ...]) -> None:
        self.columns, self.names, self.apart_ns = columns, names, apart_ns
        self._entries: tuple[Collective, ...] | None = None

    def created_ns(self, at: int) -> int:
        """Of the entry at this place."""
        return sum(self.apart_ns[: at + 1])

    def entries(self) -> tuple[Collective, ...]:
        """All of them, oldest first."""
        if self._entries is None:
            self._entries = tuple(self._made())
        return self._entries

    def _made(self) -> Iterator[Collective]:
        it = self.columns
        rows = zip(it.records, it.seqs, it.groups, it.kinds, accumulate(self.apart_ns), strict=True)
        for record, seq, group, number, created_ns in rows:
            kind = it.of[number]
            yield Collective(
                record_id=record, pg=self.names[group], pg_desc=it.descs[group], seq_id=seq,
                op=kind.op, sizes=kind.sizes, dtypes=kind.dtypes, state=kind.state,
                retired=kind.retired, created_ns=created_ns, site=kind.site, terms=kind.terms,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.columns.records)

    @overload
    def __getitem__(self, at: int) -> Collective: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Collective]: ...
    def __getitem__(self, at: int | slice) -> Collective | Sequence[Collective]:
        return self.entries()[at]

    def __iter__(self) -> Iterator[Collective]:
        return iter(self.entries())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Recorded):
            return self.entries() == other.entries()
        return isinstance(other, tuple) and self.entries() == other

    def __hash__(self) -> int:
        return hash(self.entries())

    def __repr__(self) -> str:
        return repr(self.entries())


@dataclass(frozen=True, slots=True, kw_only=True)
class PointToPoint:
    """A send or receive, as the rank's own log has it (Gloo's flight record has none).

    The `number`-th of its `direction` (send, recv; from 1) between the rank and `peer` in `pg`
    with this `tag`.
    `peer` is a global rank; -1 takes from anybody. `state`: posted (the call has returned),
    waiting (the rank waits for it now), done, failed, dropped (given up without a wait), or
    unwatched (the backend gave nothing to wait for; its own record knows more). A tensor of more
    than four sizes has its last ones multiplied. Times are wall-clock nanoseconds, 0: not yet.
    """

    direction: str
    peer: int
    pg: str
    pg_desc: str
    tag: int
    number: int
    sizes: tuple[int, ...]
    dtype: str
    state: str
    begun_ns: int
    ended_ns: int


STORE = "store"
"""Description, in place of a group's, of a store that a rank looks for where the run has none; its
name is the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCreation:
    """A process group that the rank has begun to create. Times are wall-clock nanoseconds.

    `ended_ns` 0: it is still in there, waiting for a member. `member` is whether the rank itself
    belongs to it; all ranks of the world take part in creating one. `ranks` are global ranks,
    empty when there were too many to note. `failed`: it raised. `place` is the rank's own among
    them, as its program says; -1: not said.
    """

    pg: str
    pg_desc: str
    ranks: tuple[int, ...]
    member: bool
    begun_ns: int
    ended_ns: int
    failed: bool = False
    place: int = -1


_SAME_INPUT = frozenset(
    {
        "all_reduce", "all_reduce_coalesced", "allreduce", "allreduce_coalesced",
        "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base",
        "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
        "allgather_into_tensor_coalesced",
    }
)  # fmt: skip
_SAME_INPUT_GLOO = frozenset({"all_gather", "allgather", "reduce_scatter"})


def same_input(name: str) -> bool:
    """Whether the inputs of a recorded operation (`nccl:all_reduce`) are alike on all members.

    Those of gather, scatter and all-to-all need not be, nor, with NCCL, those of the list forms of
    all-gather and reduce-scatter.
    """
    backend, _, op = name.rpartition(":")
    return op in _SAME_INPUT or (backend == "gloo" and op in _SAME_INPUT_GLOO)
