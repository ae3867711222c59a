"""What a rank does that others wait for, and that waits for nobody itself."""

import re
from dataclasses import dataclass

from harness.diagnosis.waits.graph import Op
from harness.diagnosis.waits.record import RankWait
from harness.incidents import Confidence

LOADER = re.compile(r"torch/utils/data/")
_LOCK_FILE = re.compile(r"torch/utils/file_baton\.py:(?:\w+\.)?wait$")
LOCK_FILE = (
    "waits for a lock file to go away; a job that was killed leaves it, and nobody removes it then"
)
_IO = re.compile(
    r"pipe_(?:read|write)|io_schedule|folio_wait|nfs|fuse|locks_lock|flock|wait_on_page|ext4|xfs|blk_"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    verdict: str
    words: str
    confidence: Confidence


def classify(wait: RankWait, op: Op) -> Judged:
    """From the most to the least that is known: two samples, process state, stack, records."""
    if wait.ended:
        return Judged(
            verdict="rank_exited_early", words=f"it had finished and {wait.ended}",
            confidence="proven",
        )  # fmt: skip
    if wait.progressed:
        return Judged(
            verdict="straggler",
            words="it is late but goes on: it did more between two looks",
            confidence="likely",
        )
    known = _by_process(wait) or _by_loader(wait) or _by_lock_file(wait)
    if known is not None:
        return known
    if op.creation and op.group.desc == "init_process_group":
        return Judged(
            verdict="stuck_before_first_collective",
            words=f"it has not come to init_process_group{_in(wait)}",
            confidence="proven",
        )
    if wait.doing is not None:
        words = f"its main thread is in {wait.doing.function}"
        return Judged(verdict="rank_stuck_outside_collective", words=words, confidence="proven")
    if wait.whole and not wait.tracks and not wait.program and not wait.posted:
        return Judged(
            verdict="stuck_before_first_collective",
            words="it has recorded no operation at all",
            confidence="likely",
        )
    return Judged(
        verdict="rank_stuck_outside_collective",
        words=f"it has nothing pending, so it is outside any collective{_last(wait)}",
        confidence="proven" if wait.whole or _knows(wait, op) else "likely",
    )


def _by_process(wait: RankWait) -> Judged | None:
    process = wait.process
    if process is None:
        return None
    if process.state in ("T", "t"):
        words = "its process is stopped (a signal or a debugger)"
        return Judged(verdict="rank_frozen", words=words, confidence="proven")
    if process.state == "D":
        if _IO.search(process.wchan):
            words = f"its process waits for a device or a file system ({process.wchan})"
            return Judged(verdict="rank_stuck_in_io", words=words, confidence="proven")
        words = f"its process sleeps uninterruptibly ({process.wchan or 'in the kernel'})"
        return Judged(verdict="rank_frozen", words=words, confidence="proven")
    if _IO.search(process.wchan) and not waits_for_loader(wait):
        words = f"its process waits for input or output ({process.wchan})"
        return Judged(verdict="rank_stuck_in_io", words=words, confidence="likely")
    return None


def waits_for_loader(wait: RankWait) -> bool:
    """Whether its main thread stands in torch's data loader, with none of the user's code, a data
    set of this very process, further in."""
    for frame in wait.stack:
        if wait.doing is not None and frame.startswith(f"{wait.doing.file}:"):
            return False
        if LOADER.search(frame):
            return True
    return False


def _by_loader(wait: RankWait) -> Judged | None:
    if not waits_for_loader(wait):
        return None
    words = "its main thread waits for its data loader"
    return Judged(verdict="dataloader_stuck", words=words, confidence="proven")


def _by_lock_file(wait: RankWait) -> Judged | None:
    if not any(map(waits_for_lock_file, wait.stack)):
        return None
    words = f"its main thread {LOCK_FILE}"
    return Judged(verdict="rank_stuck_outside_collective", words=words, confidence="proven")


def waits_for_lock_file(frame: str) -> bool:
    """Whether `frame` (`file:function`) polls for the end of a lock that is a mere file, as torch
    does before it builds an extension."""
    return _LOCK_FILE.search(frame) is not None


def _in(wait: RankWait) -> str:
    return "" if wait.doing is None else f"; its main thread is in {wait.doing.function}"


def _knows(wait: RankWait, op: Op) -> bool:
    track = wait.tracks.get(op.group)
    return track is not None and track.enqueued >= 0


def _last(wait: RankWait) -> str:
    if not wait.program:
        return ""
    role, call = wait.program[-1]
    at = f" at {wait.last_where.file}:{wait.last_where.line}" if wait.last_where else ""
    return f"; its last call was {call.op} on {role}{at}"
