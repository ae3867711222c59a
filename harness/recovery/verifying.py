"""What digests are asked and used for: which tensors differ, and checkpoints to vouch for."""

from harness import events as e
from harness import orders as o
from harness.diagnosis import places
from harness.diagnosis.replicas import ASK_SECONDS, unnamed
from harness.recovery.ending import Decision
from harness.recovery.locating import look_closely
from harness.state import AttemptState, RunState
from harness.state.replicas import Suspicion

VOUCHER = "replica digests"
_MOST_NODES = 4
"""Asked which tensors differ: some of the odd ranks', one of the others'."""


def ask(attempt: AttemptState, reachable: set[int]) -> list[Decision]:
    """Orders to tell the digests of single tensors where ranks have been found to differ, then
    where in a tensor it is."""
    asks: list[Decision] = []
    for known in unnamed(attempt):
        if known.asked_ns:
            continue
        order = o.TellDigests(
            attempt=attempt.index, part=known.track.part.part, count=known.at.count
        )
        nodes = _nodes(attempt, known) & reachable
        asks += [e.OrderGiven(node_rank=node, order=order) for node in sorted(nodes)]
    return asks or look_closely(attempt, reachable)


def _nodes(attempt: AttemptState, known: Suspicion) -> set[int]:
    """Those that have a rank of each class."""
    nodes: list[int] = []
    for ranks in sorted(known.at.classes, key=lambda ranks: (-len(ranks), min(ranks))):
        held = [attempt.ranks[rank].node_rank for rank in sorted(ranks) if rank in attempt.ranks]
        nodes += held[:1]
    return set(nodes[:_MOST_NODES])


def answered_by_ns(attempt: AttemptState, reachable: set[int]) -> int:
    """Until when answers are waited for; 0: for none."""
    waiting = [
        known.asked_ns
        for known in unnamed(attempt)
        if known.asked_ns and (known.asked - known.answered) & reachable
    ]
    named = max(waiting) + int(ASK_SECONDS * 1e9) if waiting else 0
    if attempt.gone:
        return named  # who is gone tells no more of it
    return max([named, *map(places.until_ns, attempt.replicas.suspicions)])


def hold(state: RunState, attempt: AttemptState, reachable: set[int]) -> list[Decision]:
    """While something is suspected, retention must not take what the run would go back to."""
    point, saver = state.clean_restore_point, attempt.ranks.get(0)
    if point is None or point.path in attempt.replicas.held or saver is None:
        return []
    order = o.HoldCheckpoint(attempt=attempt.index, path=point.path)
    node = saver.node_rank
    return [e.OrderGiven(node_rank=node, order=order)] if node in reachable else []


def certify(state: RunState, attempt: AttemptState, reachable: set[int]) -> list[Decision]:
    """Orders to certify whole checkpoints of steps at which all replicas agreed later."""
    fresh = [
        mark
        for mark in state.checkpoints.values()
        if mark.whole_ns
        and mark.attempt == attempt.index
        and mark.path not in attempt.replicas.certified
    ]
    if not fresh or not reachable:
        return []
    verified = attempt.replicas.verified_step(attempt.ranks)
    if verified is None or attempt.clean_ns is not None:
        return []
    return [
        e.OrderGiven(
            node_rank=min(reachable),
            order=o.CertifyCheckpoint(step=mark.step, path=mark.path, by=VOUCHER),
        )
        for mark in fresh
        if mark.step <= verified
    ]
