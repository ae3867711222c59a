"""Folding what is heard of checkpoints: those that ranks report, and files of the script's own."""

from harness import events as e
from harness.checkpoints import CheckpointMark
from harness.state.words import AttemptState, RunState

_MOST = 8
"""Kept of each rank."""


def saved(state: RunState, event: e.CheckpointSaved) -> None:
    """A rank's part of a checkpoint is on disk."""
    mark = state.checkpoints.get(event.step)
    saved_by = frozenset() if mark is None or mark.path != event.path else mark.saved_by
    seconds = event.seconds if mark is None else max(mark.seconds, event.seconds)
    state.checkpoints[event.step] = CheckpointMark(
        step=event.step, path=event.path, saved_by=saved_by | {event.rank}, seconds=seconds
    )


def note(
    attempt: AttemptState,
    stamp: e.Stamp,
    event: e.CheckpointFile | e.CheckpointFailed | e.FilesSetAside,
) -> None:
    """What a script did with a file of its own, could not do, or was spared from."""
    match event:
        case e.FilesSetAside():
            attempt.set_aside[event.node_rank] = event
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
    rank.refs[event.what] = (stamp.source, stamp.seq)
    if event.what == "loaded" and event.rank not in attempt.loaded:
        attempt.loaded[event.rank] = (event, rank.collectives)
