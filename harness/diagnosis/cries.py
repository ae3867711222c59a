"""Ranks of which all say only that a connection broke: which rank is an end of each of them?"""

import re
from collections.abc import Mapping

from harness.diagnosis.endings import Ending

_PEER = re.compile(r"by peer (\[[^\]\s]+\]:\d+)")
"""As Gloo names the other end: `Connection closed by peer [127.0.0.1]:5553`."""
_FEWEST = 2


def common_end(cried: Mapping[int, Ending], world_size: int) -> tuple[int, str] | None:
    """The rank whose address all others name, and that address; None where there is no such one.

    Gloo's ranks listen at one address each, and nobody is a peer of its own: an address that all
    ranks but one have lost is that one's.
    """
    named: dict[str, set[int]] = {}
    for rank, ending in cried.items():
        found = _PEER.search(ending.message)
        if found is not None:
            named.setdefault(found[1], set()).add(rank)
    for address, ranks in named.items():
        if len(ranks) == world_size - 1 >= _FEWEST:
            (left,) = set(range(world_size)) - ranks
            return left, address
    return None
