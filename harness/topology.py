"""Where a rank stands: nodes, mesh axes and coordinates. Pure words, nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_RANKS = 1 << 20
"""Of one run, and so members of a group; a number that is no smaller is no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """The ranks of one node: global ranks `first_rank .. first_rank + size - 1`."""

    node_rank: int
    host: str
    first_rank: int
    size: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.size)


def place_ranks(sizes: Sequence[tuple[int, str, int]]) -> tuple[NodeRanks, ...]:
    """Lay global ranks over nodes in node order, as torchrun does.

    `sizes` holds (node_rank, host, local world size) per node, in any order.
    """
    placed: list[NodeRanks] = []
    first = 0
    for node_rank, host, size in sorted(sizes):
        placed.append(NodeRanks(node_rank=node_rank, host=host, first_rank=first, size=size))
        first += size
    return tuple(placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Named axes over all ranks, row-major: the last axis varies fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinates of `rank`, one per axis, in axis order."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside a mesh of {self.world_size}")
        values: list[int] = []
        for size in reversed(self.sizes):
            rank, value = divmod(rank, size)
            values.append(value)
        return dict(zip(self.names, reversed(values), strict=True))

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at `coordinates`; a missing axis counts as 0."""
        rank = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            rank = rank * size + coordinates.get(name, 0)
        return rank


def coordinates_text(coordinates: Mapping[str, int]) -> str:
    """`{"dp": 1, "pp": 0}` as `dp1 pp0`, the way cards and screens write it."""
    return " ".join(f"{name}{value}" for name, value in coordinates.items())


_MOST_PARTS, _KEPT_PARTS = 24, 8
"""Of a list in a sentence: nobody reads the thousand members of a group one by one."""


def ranks_text(ranks: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`."""
    parts: list[str] = []
    start = previous = None
    for rank in [*sorted(set(ranks)), None]:
        if start is None or previous is None:
            start = previous = rank
        elif rank is not None and rank == previous + 1:
            previous = rank
        else:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = previous = rank
    return ",".join(parts)


Runs = tuple[tuple[int, int, int], ...]
"""Ranks as (first, step, count): the groups of a mesh are one or few, however large."""


def runs_of(ranks: Sequence[int]) -> Runs:
    """`ranks` in this order as runs."""
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        first, step, count = runs[-1] if runs else (0, 0, 0)
        if count == 1 and rank != first:
            runs[-1] = (first, rank - first, 2)
        elif count > 1 and rank == first + step * count:
            runs[-1] = (first, step, count + 1)
        else:
            runs.append((rank, 1, 1))
    return tuple(runs)


def ranks_of(runs: Runs) -> tuple[int, ...]:
    """The ranks of `runs`."""
    return tuple(first + step * at for first, step, count in runs for at in range(count))


def ranks_name(ranks: Sequence[int]) -> str:
    """`[3]` as `rank 3`, `[0, 1, 2]` as `ranks 0-2`; of very many the first, as `ranks_briefly`."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {ranks_briefly(ranks)}"


def ranks_briefly(ranks: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`; of very many the first, and how many more there are."""
    text = ranks_text(ranks)
    parts = text.split(",")
    if len(parts) <= _MOST_PARTS:
        return text
    last = int(parts[_KEPT_PARTS - 1].rpartition("-")[2])
    more = sum(rank > last for rank in set(ranks))
    return f"{','.join(parts[:_KEPT_PARTS])} and {more:,} more"
