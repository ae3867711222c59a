"""Words of the memory tier: what agents hold of the ranks' state, and what they are to do with it.

A generation is the state of all ranks after one step, staged in one attempt.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a node holds, whole, of the generation of `step` that `attempt` staged.

    `own` are ranks whose memory belongs to this node, `copies` those whose copies it keeps for
    others. `shards` belongs to `own`: ranks with equal ones hold the same parts of the same
    tensors, as data-parallel replicas do.
    """

    attempt: int
    step: int
    own: tuple[int, ...] = ()
    shards: tuple[str, ...] = ()
    copies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryServed:
    """Other agents reach this node's memory at `address` (HOST:PORT)."""

    node_rank: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHeld:
    """All that a node holds now, during `attempt`; once more, and for good, before its
    WorkersStopped."""

    node_rank: int
    attempt: int
    generations: tuple[Generation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKept:
    """The node has written its part of a generation as a checkpoint, or could not: `why`.

    `path` is the checkpoint, on the node that made it count.
    """

    node_rank: int
    attempt: int
    step: int
    path: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """Where the memory of `rank` can be had from: the agent at `address`."""

    rank: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a node's agent and ranks do with memory in an attempt.

    `keeper` is the agent that takes copies of this node's ranks; empty: none does. `keeps` are
    ranks of other nodes whose copies this node takes in. Its ranks go on from the generation of
    `restore_step` that `restore_attempt` staged (-1: from none, all memory is forgotten); what the
    node lacks of it comes from `fetch`.
    """

    keeper: str = ""
    keeps: tuple[int, ...] = ()
    restore_attempt: int = -1
    restore_step: int = -1
    fetch: tuple[MemorySource, ...] = ()
