"""One recorded collective or point-to-point operation, whatever the backend."""

from dataclasses import dataclass


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
