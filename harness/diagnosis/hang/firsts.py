"""Whom to look at first when thousands of ranks stand still: those that are elsewhere than most."""

from collections import Counter
from collections.abc import Set as AbstractSet

from harness.state import AttemptState

_ODD, _USUAL = 32, 32
"""Nodes: of ranks that have done what few have, and of others that show what is usual."""


def nodes_to_ask(
    attempt: AttemptState, reachable: AbstractSet[int], still_by_ns: int | None = None
) -> set[int]:
    """Nodes of `reachable`, few of many. Ranks that were seen to make progress after `still_by_ns`
    (wall clock) are odd in nothing.

    A rank that others wait for has begun fewer operations than they, or others, and there are few
    such ranks. Stages of a pipeline do not count alike, but all of one stage do.
    """
    if len(reachable) <= _ODD + _USUAL:
        return set(reachable)
    ranks = [
        rank
        for rank in attempt.ranks.values()
        if rank.alive
        and rank.node_rank in reachable
        and (still_by_ns is None or rank.advanced_ns <= still_by_ns)
    ]
    often = Counter(rank.collectives for rank in ranks)
    rarest: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        shown = often[rank.collectives], rank.collectives
        rarest[rank.node_rank] = min(shown, rarest.get(rank.node_rank, shown))
    odd = sorted(rarest, key=lambda node: (rarest[node], node))[:_ODD]
    usual = sorted(reachable - set(odd))
    return {*odd, *usual[:: max(1, len(usual) // _USUAL)][:_USUAL]}
