"""Where a run's time went, as far as its records tell. What they do not tell is `unaccounted`.

Wall-clock seconds of the run as a whole; every nanosecond lies in exactly one part, so the parts
sum to the wall time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.incidents import Incident
from harness.state import AttemptState, RunState

PARTS = (
    "rendezvous",
    "start",
    "productive",
    "lost",
    "detect",
    "stop",
    "finish",
    "unaccounted",
)
"""rendezvous: until the first attempt. start: from the end of one attempt, or the launch, to the
first completed step. productive: steps that count. lost: steps that were done again. detect: onset
to verdict. stop: verdict to the last worker gone. finish: last step to the end of the run.
unaccounted: an attempt of which no step is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentTimes:
    """Seconds; None where the end has not come. `mttd` is onset to verdict, `mttr` verdict to the
    first new step."""

    incident: int
    mttd: float
    stop: float | None
    mttr: float | None
    lost_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """`parts_ns` sums to `wall_ns`."""

    wall_ns: int
    parts_ns: Mapping[str, int]
    incidents: tuple[IncidentTimes, ...]

    @property
    def goodput(self) -> float | None:
        """Productive share of the wall time; None where no step is known."""
        if not self.wall_ns or not self.parts_ns["productive"]:
            return None
        return self.parts_ns["productive"] / self.wall_ns


def lost_steps(state: RunState, incident: Incident, resumed: AttemptState) -> int | None:
    """Steps of the failed attempt that `resumed` does again.

    None when it cannot be known: the script says nothing of checkpoints, and its steps are only
    counted from the start of each process.
    """
    failed = _attempt(state, incident.verdict.attempt)
    if failed is None:
        return None
    if resumed.resumed_step is not None:
        return max(0, failed.step - resumed.resumed_step)
    return failed.step if tells_progress(failed) and tells_progress(resumed) else None


def tells_progress(attempt: AttemptState) -> bool:
    """Whether the script itself names its steps, so that they mean the same in every attempt."""
    return any(
        rank.total_steps > 0 or rank.loss is not None or not rank.loss_finite
        for rank in attempt.ranks.values()
    )


def ledger(state: RunState) -> Ledger:
    """The books of `state`: of a live run up to its newest record."""
    end_ns = state.ended_ns or state.last_ns
    cursor = state.started_ns
    parts = dict.fromkeys(PARTS, 0)

    def book(part: str, until_ns: int) -> int:
        nonlocal cursor
        until_ns = min(max(until_ns, cursor), end_ns)
        spent = until_ns - cursor
        parts[part] += spent
        cursor = until_ns
        return spent

    if not state.attempts:
        book("rendezvous", end_ns)
    for at, attempt in enumerate(state.attempts):
        book("rendezvous" if at == 0 else "start", attempt.started_ns)
        following = state.attempts[at + 1] if at + 1 < len(state.attempts) else None
        until_ns = end_ns if following is None else following.started_ns
        incident = _incident_of(state, attempt)
        onset_ns = until_ns if incident is None else incident.verdict.onset_ns
        if attempt.first_step_ns:
            book("start", attempt.first_step_ns)
            worked = book("productive", min(onset_ns, _last_step_ns(attempt) or onset_ns))
            _move_lost(parts, attempt, incident, worked)
        else:
            book("unaccounted", onset_ns)
        if incident is not None:
            # From the last step that counted to the onset, the rank was still at work.
            book("productive" if attempt.first_step_ns else "unaccounted", onset_ns)
            book("detect", incident.detected_ns)
            book("stop", attempt.stopped_ns or until_ns)
        elif following is None:
            book("finish", end_ns)
    book("unaccounted", end_ns)
    return Ledger(
        wall_ns=end_ns - state.started_ns,
        parts_ns=parts,
        incidents=tuple(_times(state, incident) for incident in state.incidents),
    )


def _move_lost(
    parts: dict[str, int], attempt: AttemptState, incident: Incident | None, worked_ns: int
) -> None:
    """The steps done again cost, on average, what the attempt's steps took."""
    if incident is None or not incident.lost_steps:
        return
    done = attempt.step - (attempt.resumed_step or 0)
    share = min(1.0, incident.lost_steps / done) if done > 0 else 1.0
    lost_ns = int(worked_ns * share)
    parts["productive"] -= lost_ns
    parts["lost"] += lost_ns


def _last_step_ns(attempt: AttemptState) -> int:
    return max((rank.step_ns for rank in attempt.ranks.values()), default=0)


def _attempt(state: RunState, index: int) -> AttemptState | None:
    return state.attempts[index] if 0 <= index < len(state.attempts) else None


def _incident_of(state: RunState, attempt: AttemptState) -> Incident | None:
    """The incident that ended `attempt`."""
    for incident in state.incidents:
        if incident.verdict.attempt == attempt.index and incident.action != "report":
            return incident
    return None


def _times(state: RunState, incident: Incident) -> IncidentTimes:
    failed = _attempt(state, incident.verdict.attempt)
    following = _attempt(state, incident.verdict.attempt + 1)
    stopped_ns = 0 if failed is None else failed.stopped_ns
    again_ns = 0 if following is None else following.first_step_ns
    return IncidentTimes(
        incident=incident.id,
        mttd=max(0, incident.detected_ns - incident.verdict.onset_ns) / 1e9,
        stop=max(0, stopped_ns - incident.detected_ns) / 1e9 if stopped_ns else None,
        mttr=max(0, again_ns - incident.detected_ns) / 1e9 if again_ns else None,
        lost_steps=incident.lost_steps,
    )
