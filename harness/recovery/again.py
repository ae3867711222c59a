"""How closely the ranks of an attempt look at what it computes again: where nobody could say which
of them was wrong, each step and the whole state, until past the step of the fault.

Otherwise they would look at other steps than the attempt before did, as their counts begin with
what was loaded, and at other slices of the optimizer's state.
"""

from harness.diagnosis import places
from harness.diagnosis.rerun import of_rerun
from harness.state import AttemptState, RunState
from harness.state.rerun import Rerun, step_of

_MARGIN = 8
_MOST = 4096
"""Steps; of more than that, all would cost more than an answer is worth."""
_SLOWER = 1.5
"""Steps may have taken less time before the fault than they did about it."""


def closely(state: RunState, attempt: AttemptState) -> int:
    """Steps of `attempt`, counted from its first one; 0: as many as `--digest-share` allows."""
    most = 0
    for rerun in attempt.reruns:
        incident = of_rerun(state, rerun)
        if rerun.right is None and incident and len(incident.verdict.first_failing) > 1:
            most = max(most, _steps(state, rerun))
    return most if most <= _MOST else 0


def _steps(state: RunState, rerun: Rerun) -> int:
    """At most so many lie between what the run goes back to and the fault."""
    known = rerun.known
    there = step_of(known.track.part, known.at.count) + _MARGIN
    before = state.attempts[rerun.attempt]
    saved_ns = _saved_ns(state, before)
    step_ns = places.step_ns(known)
    if saved_ns <= before.started_ns or not step_ns:
        return there
    since = int(_SLOWER * (known.at.at_ns - saved_ns) / step_ns) + _MARGIN
    return min(there, max(since, _MARGIN))


def _saved_ns(state: RunState, attempt: AttemptState) -> int:
    """When the newest checkpoint from before the fault was saved; 0: there is none."""
    clean_ns = attempt.clean_ns or 0
    marks = [mark.whole_ns for mark in state.checkpoints.values()]
    files = [at_ns for at_ns, _ in attempt.replicas.saved_ns.values()]
    return max((at_ns for at_ns in (*marks, *files) if at_ns <= clean_ns), default=0)
