"""A restart because somebody asked for it: no incident, and it counts as none."""

from harness import events as e
from harness import orders as o
from harness.recovery.ending import Decision
from harness.state import AttemptState, RunState


def accept_restart(state: RunState) -> tuple[bool, str]:
    """Whether all workers may be started again now, and what that costs."""
    attempt = state.attempt
    if state.stop is not None or state.preempt is not None:
        return False, "the run is being stopped"
    if attempt is None:
        return False, "no rank has been started yet"
    if attempt.restart is not None or attempt.regroup is not None or state.stage != "running":
        return False, f"attempt {attempt.index} is being stopped already, or has not begun"
    return True, f"attempt {attempt.index} is stopped; {cost(state, attempt)}"


def cost(state: RunState, attempt: AttemptState) -> str:
    """Where the next attempt would go on, as far as the script has told."""
    mark = state.newest_restore_point
    if mark is not None:
        again = max(0, attempt.step - mark.step)
        steps = f"{again} step{'' if again == 1 else 's'} done again"
        return f"the next one goes on from the checkpoint of step {mark.step}: {steps}"
    return "the next one goes on from what the script itself loads"


def restart(attempt: AttemptState, asked: o.RestartRun) -> list[Decision]:
    """Stop the attempt for the next one."""
    return [e.Regrouping(attempt=attempt.index, why=f"is started again: {asked.why}")]
