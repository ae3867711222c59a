"""Which of the replicas that a verdict named had the wrong numbers, once a rollback has computed
them again."""

from harness.diagnosis.nearness import nearer
from harness.incidents import Incident, IncidentSettled
from harness.membership import CORRUPTION
from harness.state import AttemptState, RunState
from harness.state.rerun import Rerun
from harness.topology import ranks_name


def settled(state: RunState) -> list[IncidentSettled]:
    """What is known now of earlier incidents and was not when they were judged; once for each."""
    attempt = state.attempt
    if attempt is None:
        return []
    found: dict[int, IncidentSettled] = {}
    for rerun in attempt.reruns:
        right = rerun.right or nearer(rerun)
        incident = of_rerun(state, rerun) if right else None
        if incident is None or right >= rerun.known.group or incident.id in found:
            continue
        event = _settled(incident, rerun, right, attempt.index)
        verdict = incident.verdict
        # Who was named by a majority is not named less surely for a likeness.
        surer = rerun.right is None and len(verdict.first_failing) == 1
        if not surer and (verdict.first_failing, verdict.confidence) != (
            event.ranks,
            event.confidence,
        ):
            found[incident.id] = event
    for rerun in attempt.reruns:
        incident, again = of_rerun(state, rerun), _once_more(state, attempt, rerun)
        if incident and again and len(incident.verdict.first_failing) > 1:
            found.setdefault(incident.id, _repeated(incident, again))
    return list(found.values())


def _once_more(state: RunState, attempt: AttemptState, rerun: Rerun) -> Incident | None:
    """The incident of the attempt that computes it again that names one rank of the group alone,
    for the same tensor."""
    before = rerun.known
    for incident in state.incidents:
        verdict = incident.verdict
        alone = len(verdict.first_failing) == 1 and before.group.issuperset(verdict.first_failing)
        if not alone or (verdict.verdict, verdict.attempt) != (CORRUPTION, attempt.index):
            continue
        shown = {(ref.source, ref.seq) for ref in verdict.evidence[:1]}
        for known in attempt.replicas.suspicions:
            same = known.track.part.part == before.track.part.part
            same = same or known.close.name == before.close.name != ""
            if same and known.at.ref in shown:
                return incident
    return None


def _repeated(incident: Incident, again: Incident) -> IncidentSettled:
    """Of two faults in the same tensor of the same replicas, one rank has made both."""
    wrong, attempt = again.verdict.first_failing, again.verdict.attempt
    return IncidentSettled(
        incident_id=incident.id, ranks=wrong, cause=_cause(incident, wrong),
        reason=(
            f"attempt {attempt} was looked at more closely, the same tensor came to differ again,"
            f" and that time it was {ranks_name(wrong)} (incident {again.id})"
        ),
        confidence="likely",
    )  # fmt: skip


def of_rerun(state: RunState, rerun: Rerun) -> Incident | None:
    """The incident that was opened because of what is computed again."""
    return next((incident for incident in state.incidents if _is_of(incident, rerun)), None)


def _settled(
    incident: Incident, rerun: Rerun, right: frozenset[int], attempt: int
) -> IncidentSettled:
    wrong = tuple(sorted(rerun.known.group - right))
    those, others = ranks_name(wrong), ranks_name(sorted(right))
    how = f"attempt {attempt} has computed it again from where all were equal, and has come to"
    if rerun.right:
        reason = f"{how} the same bits as {others} then, not to those of {those}"
    else:
        reason = (
            f"{how} numbers much nearer to those of {others} than to those of {those}, where they"
            " differ; bits are no longer the same, as the fault was between two looks"
        )
    return IncidentSettled(
        incident_id=incident.id, ranks=wrong, cause=_cause(incident, wrong), reason=reason,
        confidence="proven" if rerun.right else "likely",
    )  # fmt: skip


def _cause(incident: Incident, wrong: tuple[int, ...]) -> str:
    """The incident's, of the ranks in `wrong` alone."""
    named, said = ranks_name(incident.verdict.first_failing), incident.verdict.cause
    cause = said.removeprefix(f"one of {named} has").removeprefix(f"{named} has")
    has = "has" if len(wrong) == 1 else "have"
    return said if cause == said else f"{ranks_name(wrong)} {has}{cause}"


def _is_of(incident: Incident, rerun: Rerun) -> bool:
    verdict = incident.verdict
    shown = {(ref.source, ref.seq) for ref in verdict.evidence[:1]}
    return (verdict.verdict, verdict.attempt, shown) == (
        CORRUPTION,
        rerun.attempt,
        {rerun.known.at.ref},
    )
