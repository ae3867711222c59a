"""How closely the ranks of an attempt look at what it computes again: where nobody could say which
of them was wrong, each step and the whole state, until past the step of the fault.

Otherwise they would look at other steps than the attempt before did, as their counts begin with
what was loaded, and at other slices of the optimizer's state.
"""

from harness.diagnosis import nearness, places
from harness.diagnosis.rerun import of_rerun
from harness.orders import Reread
from harness.state import AttemptState, RunState
from harness.state.rerun import Rerun, step_of

_MARGIN = 8
_MOST = 4096
"""Steps; of more than that, all would cost more than an answer is worth."""
_MOST_TOLD = 1024
"""Steps whose words are told: they stay in the journal."""
_SLOWER = 1.5
"""Steps may have taken less time before the fault than they did about it."""


def closely(state: RunState, attempt: AttemptState) -> int:
    """Steps of `attempt`, counted from its first one; 0: as many as `--digest-share` allows."""
    most = max((_steps(state, rerun) for rerun in _unnamed(state, attempt)), default=0)
    return most if most <= _MOST else 0


def reread(state: RunState, attempt: AttemptState) -> Reread | None:
    """What a rank is to tell of the tensor that differed, where words of it are known."""
    if not 0 < closely(state, attempt) <= _MOST_TOLD:
        return None
    for rerun in _unnamed(state, attempt):
        known = rerun.known
        words, part = nearness.places(known.close), known.track.part
        if words and part.clock >= 0:
            return Reread(
                part=part.part, suspect=known.at.count, site=part.site, clock=part.clock,
                name=known.close.name, rank=min(known.group), words=words,
            )  # fmt: skip
    return None


def _unnamed(state: RunState, attempt: AttemptState) -> list[Rerun]:
    """What was not settled, and nobody could tell apart."""
    waiting = [rerun for rerun in attempt.reruns if rerun.right is None]
    named = {rerun.known.at.ref: of_rerun(state, rerun) for rerun in waiting}
    return [
        rerun
        for rerun in waiting
        if (incident := named[rerun.known.at.ref]) and len(incident.verdict.first_failing) > 1
    ]


def _steps(state: RunState, rerun: Rerun) -> int:
    """At most so many lie between what the run goes back to and the fault."""
    known = rerun.known
    last = max(known.at.count, known.close.read or 0)
    there = step_of(known.track.part, last) + _MARGIN
    before = state.attempts[rerun.attempt]
    saved_ns = _saved_ns(state, before)
    step_ns = places.step_ns(known)
    if saved_ns <= before.started_ns or not step_ns:
        return there
    since = int(_SLOWER * max(0, known.at.at_ns - saved_ns) / step_ns) + _MARGIN
    read = step_of(known.track.part, last) - step_of(known.track.part, known.at.count)
    return min(there, since + read)


def _saved_ns(state: RunState, attempt: AttemptState) -> int:
    """When the newest checkpoint from before the fault was saved; 0: there is none."""
    clean_ns = attempt.clean_ns or 0
    marks = [mark.whole_ns for mark in state.checkpoints.values()]
    files = [at_ns for at_ns, _ in attempt.replicas.saved_ns.values()]
    return max((at_ns for at_ns in (*marks, *files) if at_ns <= clean_ns), default=0)
