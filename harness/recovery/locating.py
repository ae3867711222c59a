"""What is asked of ranks to find the place in a tensor where they differ."""

from harness import events as e
from harness import orders as o
from harness.diagnosis import places
from harness.recovery.ending import Decision
from harness.state import AttemptState
from harness.state.closely import MOST_BUCKETS
from harness.state.replicas import Suspicion

_MOST_CLASSES = 4
"""Of ranks with other values each, one of which is asked."""


def look_closely(attempt: AttemptState, reachable: set[int]) -> list[Decision]:
    """Orders to tell the sums of the tensor that differs, and then the words where it does."""
    asks: list[Decision] = []
    for known in attempt.replicas.suspicions:
        order = _order(attempt, known)
        if order is None:
            continue
        held = [attempt.ranks[rank].node_rank for rank in order.ranks if rank in attempt.ranks]
        if len(held) == len(order.ranks) and set(held) <= reachable:
            asks += [e.OrderGiven(node_rank=node, order=order) for node in sorted(set(held))]
    return asks


def _order(attempt: AttemptState, known: Suspicion) -> o.LookClosely | None:
    close, part = known.close, known.track.part
    if not close.asked_ns:
        name = places.tensor_of(known)
        ranks = places.ranks_of(known)
        if not name or len(ranks) < 2 or len(ranks) > _MOST_CLASSES:
            return None
        return o.LookClosely(
            attempt=attempt.index, part=part.part, count=known.at.count, name=name, ranks=ranks
        )
    damage = close.damage
    if close.words_asked or damage is None or part.site not in places.READ_AGAIN:
        return None
    if not damage.buckets or close.mute:
        return None
    return o.LookClosely(
        attempt=attempt.index,
        part=part.part,
        count=known.at.count,
        name=close.name,
        ranks=close.ranks,
        buckets=damage.buckets[:MOST_BUCKETS],
        stride=places.stride(known),
        referee=places.needs_referee(known),
    )
