"""Folding what is agreed on with ranks: the steps at which they stop, or save."""

from harness import events as e
from harness import orders as o
from harness.state.words import AttemptState, Meeting, RunState, SaveRequest


def wanted(state: RunState, command: o.SaveNow) -> None:
    """Somebody wants a checkpoint now."""
    if state.attempt is not None:
        state.attempt.save_at = None
        state.save = SaveRequest(request=command.request, attempt=state.attempt.index)


def ordered(
    attempt: AttemptState | None, node_rank: int, order: o.StopAtStep | o.SaveAtStep
) -> None:
    """A node was told of a step."""
    if attempt is None:
        return
    stops = isinstance(order, o.StopAtStep)
    at = attempt.stop_at if stops else attempt.save_at
    if at is None or at.step != order.step:
        at = Meeting(step=order.step, tries=0 if at is None or at.step < 0 else at.tries + 1)
        if stops:
            attempt.stop_at = at
        else:
            attempt.save_at = at
    (at.agreed if order.agreed else at.told).add(node_rank)


def answered(attempt: AttemptState | None, event: e.StopStepTaken | e.SaveStepTaken) -> None:
    """A node has said how far its ranks are."""
    if attempt is None:
        return
    at = attempt.stop_at if isinstance(event, e.StopStepTaken) else attempt.save_at
    if at is not None and at.step == event.step:
        at.answers[event.node_rank] = event


def noted(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    """A rank could not save where it was asked to."""
    wish = state.save
    if wish is None or wish.failed or wish.attempt != stamp.attempt:
        return
    at = state.attempts[wish.attempt].save_at
    if isinstance(event, e.CheckpointFailed) and at and at.agreed and event.step >= at.step:
        wish.failed = f"the checkpoint of step {event.step} was not saved: {event.why}"
