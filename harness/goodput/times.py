"""What each incident cost: until it was known, until a new step was made, and what went into it."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.incidents import Incident
from harness.state import AttemptState, RunState
from harness.state.booking import tells_progress

SPLIT = ("decide", "stop", "store", "start", "init", "load", "recompute", "step")
"""decide: verdict to the first order. stop: to the last worker gone. store: to the next launch.
start: to the last worker's first sign. init: to the first rank at work. load: what of that the
slowest rank says that its load took. recompute: steps done again. step: the first new one."""

_DECISIVE = ("restart", "rollback", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentTimes:
    """Seconds; None where the end has not come. `mttd` is onset to verdict, `mttr` verdict to the
    first step that had not been made before; the parts in `split` sum to it."""

    incident: int
    mttd: float
    mttr: float | None
    split: Mapping[str, float | None]
    lost_steps: int | None
    restarted: bool
    resumed_from: str | None = None
    """disk, memory or neighbour: where the next attempt says that it went on from."""

    @property
    def downtime(self) -> float | None:
        """Onset to the first step, new or not."""
        if self.mttr is None:
            return None
        return self.mttd + self.mttr - (self.split["recompute"] or 0.0)


def decisive_incident(state: RunState, attempt: int) -> Incident | None:
    """The incident that ended `attempt`."""
    for incident in state.incidents:
        if incident.verdict.attempt == attempt and incident.action in _DECISIVE:
            return incident
    return None


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


def incident_times(state: RunState) -> tuple[IncidentTimes, ...]:
    """In the order in which they were judged."""
    return tuple(_times(state, incident) for incident in state.incidents)


def _attempt(state: RunState, index: int) -> AttemptState | None:
    return state.attempts[index] if 0 <= index < len(state.attempts) else None


def _times(state: RunState, incident: Incident) -> IncidentTimes:
    restarted = incident.action in ("restart", "rollback")
    failed = _attempt(state, incident.verdict.attempt) if restarted else None
    following = _attempt(state, incident.verdict.attempt + 1) if restarted else None
    split = _split(incident, failed, following)
    again_ns = 0 if following is None else following.moments.new_step_ns
    return IncidentTimes(
        incident=incident.id,
        mttd=max(0, incident.detected_ns - incident.verdict.onset_ns) / 1e9,
        mttr=max(0, again_ns - incident.detected_ns) / 1e9 if again_ns else None,
        split=split,
        lost_steps=incident.lost_steps,
        restarted=following is not None,
        resumed_from=None if following is None else following.resumed_from,
    )


def _split(
    incident: Incident, failed: AttemptState | None, following: AttemptState | None
) -> dict[str, float | None]:
    split: dict[str, float | None] = dict.fromkeys(SPLIT)
    if failed is None:
        return split
    until = {"decide": failed.stop_ordered_ns, "stop": failed.stopped_ns}
    if following is not None:
        moments = following.moments
        until |= {
            "store": following.started_ns,
            "start": moments.signed_ns,
            "init": moments.begun_ns,
            "recompute": moments.recomputed_ns,
            "step": moments.new_step_ns,
        }
    last_ns = following.moments.new_step_ns if following is not None else 0
    cursor = incident.detected_ns
    for part, moment_ns in until.items():
        if not moment_ns:
            break
        until_ns = max(cursor, min(moment_ns, last_ns) if last_ns else moment_ns)
        split[part] = (until_ns - cursor) / 1e9
        cursor = until_ns
    if following is not None and split["init"] is not None:
        load = min(split["init"], following.moments.load_ns / 1e9)
        split["load"] = load
        split["init"] -= load
    return split
