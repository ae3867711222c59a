"""Which other nodes an agent of an attempt can take micro-batches to."""

from harness import orders as o
from harness.state import AttemptState, RunState

_MOST = 64
"""Nodes that follow a node: those who compute its ranks' batches again are near in any layout."""


def neighbours(state: RunState, attempt: AttemptState, node: int) -> tuple[o.Neighbour, ...]:
    """Nothing where no batch is computed again (`--replays`)."""
    if state.run is None or state.run.policy.replays == 0:
        return ()
    places = list(attempt.nodes)
    at = places.index(node)
    others = [attempt.nodes[each] for each in (places[at + 1 :] + places[:at])[:_MOST]]
    known = state.memory_addresses
    return tuple(
        o.Neighbour(first_rank=other.first_rank, size=other.size, address=known[other.node_rank])
        for other in others
        if other.node_rank in known
    )
