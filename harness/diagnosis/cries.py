"""Ranks of which all say only that a connection broke: which ranks are its ends?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.diagnosis.endings import Ending
from harness.topology import ranks_name

_PEER = re.compile(r"by peer (\[[^\]\s]+\]:\d+)|error (\[[^\]\s]+\]:\d+)")
"""As Gloo names the other end: `Connection closed by peer [::1]:53`, `Read error [::1]:53`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """`ranks` are the ends of what broke first, as far as they are known; `shows` says how."""

    ranks: tuple[int, ...]
    shows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cry:
    """`rank` lost the connection with the rank that listens at `address`; -1 where that is not
    known."""

    rank: int
    address: str
    peer: int = -1


def blame(
    cried: Sequence[Ending],
    first: Sequence[Ending],
    listens: Mapping[str, int],
    world_size: int,
) -> Blame:
    """Who is to blame for the `first` of those that `cried`. `listens` has the rank by address.

    A rank that all the first connections have in common broke them, if they are several. Of one
    connection nothing tells which end broke it.
    """
    known = [
        _Cry(rank=ending.rank, address=address)
        for ending in cried
        if (address := _address(ending)) is not None
    ]
    lost_by_all = _lost_by_all(known, world_size)
    for address, rank in lost_by_all.items():
        if world_size > 2:
            shows = f"every other rank lost the one with {address}, only rank {rank} can be that"
            return Blame(ranks=(rank,), shows=shows)
    owners = {**lost_by_all, **listens}
    cries = [replace(cry, peer=owners.get(cry.address, -1)) for cry in known]
    now = {ending.rank for ending in first}
    links = {frozenset((cry.rank, cry.peer)) for cry in cries if cry.peer >= 0 and cry.rank in now}
    common = frozenset.intersection(*links) if len(links) > 1 else frozenset()
    if len(common) == 1:
        (rank,) = common
        others = sorted({end for link in links for end in link} - common)
        shows = f"all that broke first, with {ranks_name(others)}, had rank {rank} at one end"
        return Blame(ranks=(rank,), shows=shows)
    ends = tuple(sorted(now | {end for link in links for end in link}))
    if len(links) == 1:
        shows = f"{ranks_name(ends)} are the ends of what broke first, and nothing shows which of"
        return Blame(ranks=ends, shows=f"{shows} them broke it")
    shows = f"{ranks_name(ends)} lost one first, and nothing shows which end broke it"
    return Blame(ranks=ends, shows=shows)


def _address(ending: Ending) -> str | None:
    found = _PEER.search(ending.message)
    return None if found is None else found[1] or found[2]


def _lost_by_all(cries: Sequence[_Cry], world_size: int) -> dict[str, int]:
    """The rank by address, where all others have lost it: nobody is a peer of its own."""
    named: dict[str, set[int]] = {}
    for cry in cries:
        named.setdefault(cry.address, set()).add(cry.rank)
    found = {}
    for address, ranks in named.items():
        if len(ranks) == world_size - 1:
            (found[address],) = set(range(world_size)) - ranks
    return found
