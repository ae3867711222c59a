"""A checkpoint because somebody asked for one: all ranks save at one step, and the run goes on."""

from harness import orders as o
from harness.recovery.ending import Decision
from harness.recovery.meeting import agree, propose, tell
from harness.saving import nobody_asks, saving
from harness.state import AttemptState, RunState


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
    if not at.answers.keys() >= reachable or nobody_asks(at):
        return []
    return propose(o.SaveAtStep, attempt, at, reachable)
