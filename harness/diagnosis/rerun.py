"""Which of the replicas that a verdict named had the wrong numbers, once a rollback has computed
them again."""

from harness.incidents import Incident, IncidentSettled
from harness.membership import CORRUPTION
from harness.state import RunState
from harness.state.rerun import Rerun
from harness.topology import ranks_name


def settled(state: RunState) -> list[IncidentSettled]:
    """What is known now of earlier incidents and was not when they were judged; once for each."""
    attempt = state.attempt
    if attempt is None:
        return []
    found: dict[int, IncidentSettled] = {}
    for rerun in attempt.reruns:
        incident = of_rerun(state, rerun) if rerun.right else None
        wrong = tuple(sorted(rerun.known.group - (rerun.right or frozenset())))
        if incident is None or not wrong or incident.id in found:
            continue
        if (incident.verdict.first_failing, incident.verdict.confidence) != (wrong, "proven"):
            found[incident.id] = _settled(incident, rerun, wrong, attempt.index)
    return list(found.values())


def of_rerun(state: RunState, rerun: Rerun) -> Incident | None:
    """The incident that was opened because of what is computed again."""
    return next((incident for incident in state.incidents if _is_of(incident, rerun)), None)


def _settled(
    incident: Incident, rerun: Rerun, wrong: tuple[int, ...], attempt: int
) -> IncidentSettled:
    verdict, those = incident.verdict, ranks_name(wrong)
    named = ranks_name(verdict.first_failing)
    cause = verdict.cause.removeprefix(f"one of {named} has").removeprefix(f"{named} has")
    if cause != verdict.cause:
        cause = f"{those} {'has' if len(wrong) == 1 else 'have'}{cause}"
    return IncidentSettled(
        incident_id=incident.id,
        ranks=wrong,
        cause=cause,
        reason=f"attempt {attempt} has computed it again from where all were equal, and has come to"
        f" the same bits as {ranks_name(sorted(rerun.right or ()))} then, not to those of {those}",
    )


def _is_of(incident: Incident, rerun: Rerun) -> bool:
    verdict = incident.verdict
    shown = {(ref.source, ref.seq) for ref in verdict.evidence[:1]}
    return (verdict.verdict, verdict.attempt, shown) == (
        CORRUPTION,
        rerun.attempt,
        {rerun.known.at.ref},
    )
