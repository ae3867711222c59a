"""Folding the creation of process groups: one name, one group."""

from harness import events as e
from harness.state.words import AttemptState

_WORLD = "0"


def note(attempt: AttemptState, made: e.GroupCreated) -> None:
    """Each group is reported by its lowest rank. torch counts names up on every rank alike, anew
    from each group of all ranks on; names that are no numbers hold their ranks."""
    if made.pg == _WORLD:
        attempt.counted.clear()
    if not made.pg.isdecimal():
        return
    first = attempt.counted.setdefault(made.pg, made)
    if set(first.ranks) != set(made.ranks) and attempt.clash is None:
        attempt.clash = (first, made)
