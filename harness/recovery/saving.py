"""A checkpoint because somebody asked for one: all ranks save at one step, and the run goes on."""

from dataclasses import dataclass
from typing import Literal

from harness import orders as o
from harness.recovery.ending import Decision
from harness.recovery.meeting import agree, propose, saved_since, tell
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


def accept_save(state: RunState) -> tuple[bool, str]:
    """Whether ranks may be asked for a checkpoint now."""
    attempt = state.attempt
    if state.stop is not None or state.preempt is not None:
        return False, "the run is being stopped"
    if attempt is None or state.stage != "running" or attempt.regroup is not None:
        return False, f"no workers are running (the run is {state.stage})"
    if len(attempt.gone) == attempt.world_size:
        return False, "every rank is gone"
    now = saving(state)
    if now is not None and not now.over:
        return False, f"a checkpoint is being saved already: {now.words}"
    return True, "the ranks are asked for a step to save at"


def save_orders(state: RunState, attempt: AttemptState, reachable: set[int]) -> list[Decision]:
    """Find out how far the ranks are, then agree with all of them on a step."""
    wish, at = state.save, attempt.save_at
    if wish is None or wish.attempt != attempt.index or attempt.stop_ordered or not reachable:
        return []
    if at is None or (at.step < 0 and (unasked := reachable - at.told)):
        return tell(o.SaveAtStep, attempt, reachable if at is None else unasked, -1)
    if at.step >= 0:
        return agree(o.SaveAtStep, attempt, at, reachable)
    if not at.answers.keys() >= reachable or _nobody_asks(at):
        return []
    return propose(o.SaveAtStep, attempt, at, reachable)


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
    if at is not None and at.step < 0 and at.answers.keys() >= at.told and _nobody_asks(at):
        return NOTHING_SAVES
    over = state.ended is not None or attempt is not state.attempt or attempt.stop_ordered
    if over or len(attempt.gone) == attempt.world_size:
        return f"attempt {attempt.index} ended before all ranks had saved"
    return ""


def _nobody_asks(at: Meeting) -> bool:
    return all(answer.furthest < 0 for answer in at.answers.values())
