"""Folding the creation of process groups: one name, one group."""

from harness import events as e
from harness.state.words import AttemptState, RunState

_WORLD = "0"


def created(state: RunState, attempt: AttemptState | None, made: e.GroupCreated) -> None:
    """A group was made, in `attempt` if that is known."""
    state.groups[f"{made.pg}@{made.rank}"] = made
    state.group_of.setdefault(made.pg, {}).update(dict.fromkeys(made.ranks, made))
    if attempt is not None:
        _count(attempt, made)


def forget(state: RunState) -> None:
    """Other ranks stand elsewhere: what they told of their places holds no more."""
    state.mesh = None
    state.coordinates.clear()
    state.groups.clear()
    state.group_of.clear()


def _count(attempt: AttemptState, made: e.GroupCreated) -> None:
    """Each group is reported by its lowest rank. torch counts names up on every rank alike, anew
    from each group of all ranks on; names that are no numbers hold their ranks."""
    if made.pg == _WORLD:
        attempt.counted.clear()
    if not made.pg.isdecimal():
        return
    first = attempt.counted.setdefault(made.pg, made)
    if set(first.ranks) != set(made.ranks) and attempt.clash is None:
        attempt.clash = (first, made)
