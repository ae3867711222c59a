"""What to do when the loss has gone up to stay: back to before it, once; where it comes again, it
is the data's or the program's."""

from harness.sightings import Doubt
from harness.state import AttemptState, RunState

_NEAR = 32
"""Steps within which two spikes are the same one."""


def seen(attempt: AttemptState) -> Doubt | None:
    """The first word of a rank whose loss went up to stay."""
    told = attempt.doubts.of("loss")
    return told[0].doubt if told else None


def known(state: RunState) -> Doubt | None:
    """The newest spike of the attempts before this one."""
    found = [seen(attempt) for attempt in state.attempts[:-1]]
    return next((doubt for doubt in reversed(found) if doubt is not None), None)


def again(state: RunState) -> str:
    """Why another rollback would not help; empty: there was none for this spike."""
    now = None if state.attempt is None else seen(state.attempt)
    rolled = {
        incident.verdict.attempt
        for incident in state.incidents
        if incident.verdict.verdict == "loss_spike" and incident.action == "rollback"
    }
    for attempt in state.attempts[:-1]:
        before = seen(attempt)
        if attempt.index not in rolled or before is None or now is None:
            continue
        if abs(now.count - before.count) <= _NEAR:
            return (
                f"so it did in step {before.count} of attempt {attempt.index}: the data there, or"
                " the program, and no device"
            )
    return ""
