"""What retention of the script's own has taken from a rollback: said aloud, as Harness cannot keep
it from deleting files."""

import os

from harness.checkpointnames import finished
from harness.recovery.ending import STORE_NODE, Decision, notify
from harness.state import AttemptState, RunState

_MOST = 16


def countable(state: RunState, attempt: AttemptState) -> dict[str, int]:
    """Files that the script has saved before all was well for the last time in `attempt`, newest
    first, by the node to tell."""
    saved: dict[str, tuple[int, int]] = {}
    for each in state.attempts[: attempt.index + 1]:
        saved |= each.replicas.saved_ns
    clean_ns = attempt.clean_ns or 0
    good = [p for p, (at_ns, _) in saved.items() if at_ns <= clean_ns and not _aside(state, p)]
    newest = sorted(good, key=lambda path: saved[path], reverse=True)[:_MOST]
    held = {path: attempt.ranks.get(saved[path][1]) for path in newest}
    return {path: rank.node_rank for path, rank in held.items() if rank is not None}


def _aside(state: RunState, path: str) -> bool:
    """Whether it was given another name."""
    name = os.path.join(os.path.dirname(path), _name(path))
    moved = [
        to for each in state.attempts for files in each.set_aside.values() for to in files.moved
    ]
    return any(to.startswith((f"{path}.", f"{name}.")) for to in moved)


def lost_notice(state: RunState) -> list[Decision]:
    """One line where the attempt before has gone back, and a good file was deleted or written over
    meanwhile; once."""
    attempt = state.attempts[-2] if len(state.attempts) > 1 else None
    incident = state.incidents[-1] if state.incidents else None
    if attempt is None or incident is None or not attempt.set_aside:
        return []
    if (incident.action, incident.verdict.attempt) != ("rollback", attempt.index):
        return []
    good = list(countable(state, attempt))
    deleted = {path for files in attempt.set_aside.values() for path in files.gone}
    left = [path for path in good if path not in deleted]
    newer = good[: good.index(left[0])] if left else good
    first = attempt.replicas.first_saved_ns
    clean_ns = attempt.clean_ns or 0
    saved = attempt.replicas.saved_ns
    over = [p for p, (at_ns, _) in saved.items() if first[p] <= clean_ns < at_ns]
    if over and not left:
        what = f"the script has written over {_name(max(over, key=lambda p: first[p]))} since"
        why = "; what it held was from before the corruption"
    elif newer:
        what = f"the script has deleted {_name(newer[0])} meanwhile"
        why = ", its last checkpoint from before the corruption"
    else:
        return []
    point = state.newest_restore_point
    if left:
        then = f"this attempt has {_name(left[0])}"
    elif point is not None:
        then = f"this attempt has the checkpoint of step {point.step}"
    else:
        then = "none of this run's is left"
    mark = f"harness: incident {incident.id}: {what}"
    advice = "have it keep more of them, or save with harness.Checkpointer"
    return notify(state, [STORE_NODE], mark, lambda: f"{mark}{why}; {then}: {advice}")


def _name(path: str) -> str:
    return finished(os.path.basename(path))
