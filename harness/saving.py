"""What has become of a request for a checkpoint: read off the state, and said in words. Pure."""

from dataclasses import dataclass
from typing import Literal

from harness.checkpoints import CheckpointMark
from harness.state import AttemptState, Meeting, RunState

NOTHING_SAVES = (
    "nothing in the script can save now: no rank has called Checkpointer.maybe_save, or asked"
    " harness.should_save, so far"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What has become of the newest request. `step` is None before the ranks have agreed on one."""

    stage: Literal["asking", "waiting", "saved", "failed"]
    words: str
    step: int | None = None
    path: str = ""

    @property
    def over(self) -> bool:
        return self.stage in ("saved", "failed")


def saving(state: RunState) -> Saving | None:
    """How far the newest request for a checkpoint is; None: there was none."""
    wish = state.save
    if wish is None:
        return None
    attempt = state.attempts[wish.attempt]
    at = attempt.save_at
    step = at.step if at is not None and at.agreed else None
    for mark in saved_since(state, attempt, step) if step is not None else ():
        words = f"checkpoint of step {mark.step} saved: {mark.path}"
        return Saving(stage="saved", words=words, step=mark.step, path=mark.path)
    why = wish.failed or _never(state, attempt, at)
    if why:
        return Saving(stage="failed", words=why, step=step)
    if step is None:
        return Saving(stage="asking", words="the ranks are asked for a step")
    words = f"all ranks save at step {step}, the furthest is at {attempt.step}"
    return Saving(stage="waiting", words=words, step=step)


def _never(state: RunState, attempt: AttemptState, at: Meeting | None) -> str:
    """Why nothing will come of the request; empty while something may."""
    if at is not None and at.step < 0 and at.answers.keys() >= at.told and nobody_asks(at):
        return NOTHING_SAVES
    over = state.ended is not None or attempt is not state.attempt or attempt.stop_ordered
    if over or len(attempt.gone) == attempt.world_size:
        return f"attempt {attempt.index} ended before all ranks had saved"
    return ""


def nobody_asks(at: Meeting) -> bool:
    """Whether no rank that answered has ever asked whether to save."""
    return all(answer.furthest < 0 for answer in at.answers.values())


def saved_since(state: RunState, attempt: AttemptState, step: int) -> list[CheckpointMark]:
    """Checkpoints of `step` or later that all ranks of `attempt` have saved, the oldest first. One
    of an earlier attempt that is just being saved again does not count."""
    marks = [m for m in state.checkpoints.values() if m.attempt == attempt.index and m.whole_ns]
    whole = [m for m in marks if m.step >= step and len(m.saved_by) >= attempt.world_size]
    return sorted(whole, key=lambda mark: mark.step)
