"""Who computes whose micro-batch again: pure arithmetic on ranks.

In even rounds a neighbour on the same node, in odd ones the rank that is as many places further in
the group as a node has members there; where nodes are filled alike, that is one on the next node. A
device that errs lastingly is so in pairs with several others and in common to all of them.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """The rank whose batch this rank computes again, the rank that does so with its own, and how
    many ranks pass their batches round like that."""

    owner: int
    reader: int
    size: int


def pair_of(members: Sequence[int], rank: int, local: Collection[int], turn: int) -> Pair:
    """Of `rank`, one of `members`, who hold the same parameters; `local` are the ranks of its node.
    `turn` numbers the rounds, alike on all ranks, which may leave out all but multiples of a power
    of two: rounds with an even number of binary ones (Thue, 1906) are even still."""
    near = [member for member in members if member in local]
    nodes = -(-len(members) // len(near))
    if nodes == 1 or (len(near) > 1 and turn.bit_count() % 2 == 0):
        ring, shift = near, 1
    else:
        ring, shift = list(members), -(-len(members) // nodes)
    at = ring.index(rank)
    return Pair(ring[at - shift], ring[(at + shift) % len(ring)], len(ring))


def local_ranks(rank: int) -> list[int]:
    """The ranks of this node, as torchrun's variables tell them."""
    try:
        first = rank - int(os.environ["LOCAL_RANK"])
        return list(range(first, first + int(os.environ["LOCAL_WORLD_SIZE"])))
    except (KeyError, ValueError):
        return [rank]
