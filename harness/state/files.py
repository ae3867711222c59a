"""Folding what is heard of checkpoints: those that ranks report, and files of the script's own."""

from harness import events as e
from harness.checkpoints import CheckpointMark
from harness.state.words import AttemptState, RunState

_MOST = 8
"""Kept of each rank."""
_MOST_SAVED = 4096
"""Paths of files; of more, the later ones are not remembered."""
_MOST_FLAWS = 256


def saved(state: RunState, stamp: e.Stamp, event: e.CheckpointSaved) -> None:
    """A rank's part of a checkpoint is on disk."""
    known = 0 <= stamp.attempt < len(state.attempts)
    attempt = state.attempts[stamp.attempt] if known else None
    mark = state.checkpoints.get(event.step)
    if mark is not None and mark.path != event.path:
        mark = None
    # Counted against the ranks of the attempt that saves: the next one may have others.
    again = mark is not None and mark.attempt == stamp.attempt
    saved_by = mark.saved_by | {event.rank} if mark and again else frozenset({event.rank})
    whole = attempt is not None and len(saved_by) >= attempt.world_size
    # What an earlier attempt had saved under this name is gone once this one's is whole.
    now = whole and not (mark and again and event.rank in mark.saved_by)
    known_ns = 0 if mark is None else mark.whole_ns
    state.checkpoints[event.step] = CheckpointMark(
        step=event.step,
        path=event.path,
        saved_by=saved_by,
        seconds=event.seconds if mark is None else max(mark.seconds, event.seconds),
        attempt=stamp.attempt,
        whole_ns=state.last_ns if now else known_ns,
    )


def note(
    state: RunState,
    attempt: AttemptState,
    stamp: e.Stamp,
    event: e.CheckpointFile | e.CheckpointFailed | e.CheckpointFlaw | e.FilesSetAside,
) -> None:
    """What a script did with a file of its own, could not do, or was spared from."""
    match event:
        case e.FilesSetAside():
            attempt.set_aside[event.node_rank] = event
        case e.CheckpointFlaw(kind="mended"):
            for any_attempt in state.attempts:
                any_attempt.flaws.pop((event.node_rank, event.path), None)
        case e.CheckpointFlaw():
            if len(attempt.flaws) < _MOST_FLAWS:
                attempt.flaws[event.node_rank, event.path] = (event, stamp)
        case e.CheckpointFailed():
            failed = e.CheckpointFile(
                rank=event.rank,
                what="save_failed",
                path=event.path,
                step=event.step,
                error=event.why,
            )
            _file(attempt, stamp, failed)
        case e.CheckpointFile():
            _file(attempt, stamp, event)


def _file(attempt: AttemptState, stamp: e.Stamp, event: e.CheckpointFile) -> None:
    rank = attempt.ranks.get(event.rank)
    if rank is None:
        return
    done = attempt.files.setdefault(event.rank, [])
    done.append(event)
    del done[:-_MOST]
    if event.what == "saved" and len(attempt.replicas.saved_ns) < _MOST_SAVED:
        attempt.replicas.saved_ns[event.path] = (stamp.wall_ns, event.rank)
        attempt.replicas.first_saved_ns.setdefault(event.path, stamp.wall_ns)
    rank.refs[event.what] = (stamp.source, stamp.seq)
    if event.what == "loaded" and event.rank not in attempt.loaded:
        attempt.loaded[event.rank] = (event, rank.collectives)
