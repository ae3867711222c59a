"""What the waits of a few ranks show although the others were not looked at."""

from harness.diagnosis.waits.record import Waits
from harness.diagnosis.waits.root import Root
from harness.incidents import FAMILY_OF

_MANY_TO_ONE = 4
"""Ranks are odd among those seen where so many times more do what is usual."""


def holds(root: Root, waits: Waits) -> bool:
    """Whether no rank that was not looked at could make `root` wrong.

    A rank that is seen elsewhere while others wait for it waits for nobody, whatever is not seen.
    What ranks called says something only beside those who called the usual, and these must be
    either all members of the group or many more than the odd ones.
    """
    if root.tied or root.doubtful or waits.unasked.intersection(root.ranks):
        return False
    if FAMILY_OF[root.verdict] == "desync":
        return _whole(root, waits) or _seen(root, waits) > _MANY_TO_ONE * len(root.ranks)
    return all(_outside(waits, rank) for rank in root.ranks)


def _whole(root: Root, waits: Waits) -> bool:
    """Whether all members of its group were looked at."""
    ranks = root.op.group.ranks
    return ranks is not None and waits.unasked.isdisjoint(ranks)


def _seen(root: Root, waits: Waits) -> int:
    """Members of its group that were looked at."""
    return len(waits.ranks.keys() & set(root.op.members))


def _outside(waits: Waits, rank: int) -> bool:
    """Whether it waits for no other rank."""
    wait = waits.ranks.get(rank)
    if wait is None:
        return False
    return wait.frozen or bool(wait.ended) or (wait.head is None and wait.creating is None)
