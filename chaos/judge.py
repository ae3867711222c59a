"""Was the run judged rightly, and is the job whole? Compares what a plan did with what was said.

Knows nothing of how faults are done: a plan's kinds say what must come of them, the journal says
what came.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.chaos import kinds
from harness.chaos.executor import Executed
from harness.chaos.kinds import Kind
from harness.chaos.workloads import same_final
from harness.errors import ExitCode
from harness.events import FaultInjected
from harness.faults import ANY, whom
from harness.incidents import Incident
from harness.state import RunState

_CLOCKS_NS = 500_000_000
"""By which clocks of nodes may differ: what was said before the harm is not said of it."""
_ENDS = 2
"""Of a connection: where it was cut, either may be named."""
_AT_ONCE_NS = 10 * 10**9
"""Between two faults of which one incident may stand for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question. `ok` None: it could not be asked, or need not be."""

    name: str
    ok: bool | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault that was done, and what was said of it or in its place; `nothing`."""

    kind: str
    target: str
    said: str
    ranks: tuple[int, ...]
    action: str
    mttd: float | None
    """Seconds from the harm to the verdict."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Question → what is wrong, of class, ranks, innocents and action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """All questions to one run, and what tables show of it."""

    plan: str
    checks: tuple[Check, ...]
    rows: tuple[Row, ...]
    expected: str
    """Of the first fault: the class that must be said, or `nothing`."""
    said: str
    """The class that was said of it, or of something else; `nothing`."""
    ranks: tuple[int, ...]
    mttd: float | None
    """Seconds from the harm to the verdict."""
    lost_steps: int | None
    seconds: float
    folder: str

    @property
    def right(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    def wrong(self) -> list[str]:
        """What is wrong, in words."""
        return [f"{check.name}: {check.says}" for check in self.checks if check.ok is False]

    def check(self, name: str) -> bool | None:
        """The answer to one question."""
        return next((check.ok for check in self.checks if check.name == name), None)


def from_dict(raw: Mapping[str, Any]) -> Judgment:
    """One that was written as `dataclasses.asdict` has it, and perhaps more. Raises KeyError or
    TypeError where it was not."""
    known = {each.name: raw[each.name] for each in fields(Judgment)}
    rows = [Row(**{**row, "ranks": tuple(row["ranks"])}) for row in known["rows"]]
    checks = [Check(**check) for check in known["checks"]]
    known |= {"rows": tuple(rows), "checks": tuple(checks), "ranks": tuple(known["ranks"])}
    return Judgment(**known)


@dataclass(slots=True)
class _Case:
    """A fault that was done, and what is about it. `attempt` None: not known."""

    fault: FaultInjected
    kind: Kind
    attempt: int | None
    incident: Incident | None = None
    stray: list[Incident] = field(default_factory=list)
    """Said after it and about nothing that was done."""


def judge(done: Executed, calm: Path | None) -> Judgment:
    """Compare what was done with what was said. `calm` is where the same run without
    faults wrote."""
    state = done.state
    cases, early = _cases(state)
    rows = tuple(_row(case, cases, state) for case in cases)
    checks = [_done(done), *_asked_of_each(rows, early)]
    checks += [_outcome(done, cases), _lost(done, cases), _final(done, calm, cases)]
    checks += [Check(name="residue", ok=not done.residue, says=done.residue.words())]
    first = cases[0].incident if cases else None
    shown = first or next(iter(state.incidents), None)
    return Judgment(
        plan=str(done.plan),
        checks=tuple(checks),
        rows=rows,
        expected=_expected(done),
        said="nothing" if shown is None else shown.verdict.verdict,
        ranks=() if shown is None else tuple(shown.verdict.first_failing),
        mttd=rows[0].mttd if rows else None,
        lost_steps=None if first is None else first.lost_steps,
        seconds=done.seconds,
        folder=str(done.folder),
    )


def _cases(state: RunState) -> tuple[list[_Case], list[Incident]]:
    """Each fault with its incident; what is about no fault goes to the one before it, or is
    returned where nothing was done yet."""
    cases = [
        _Case(fault=fault, kind=kinds.find(fault.fault.kind), attempt=_attempt(fault, state))
        for fault in state.faults
    ]
    for case in cases:
        case.incident = next((i for i in _told_of(case, state) if _names(i, case, state)), None)
    for case in cases:  # of the right class, and of the wrong ranks
        if case.incident is None:
            claimed = [each.incident for each in cases]
            case.incident = next((i for i in _told_of(case, state) if i not in claimed), None)
    early: list[Incident] = []
    for incident in state.incidents:
        if incident in [case.incident for case in cases] or any(
            _may_be_of(incident, case) and _names(incident, case, state) for case in cases
        ):
            continue
        before = [c for c in cases if c.fault.injected_ns - _CLOCKS_NS <= incident.detected_ns]
        (before[-1].stray if before else early).append(incident)
    return cases, early


def _attempt(fault: FaultInjected, state: RunState) -> int | None:
    """In which it was done."""
    begun = [a.index for a in state.attempts if a.started_ns <= fault.injected_ns]
    return begun[-1] if begun else None


def _near(incident: Incident, case: _Case) -> bool:
    """Whether the harm can have been at work in the incident's attempt: processes end with
    theirs, files and nodes do not."""
    lasts = case.kind.area == "checkpoint" or case.kind.on_node
    return lasts or case.attempt is None or incident.verdict.attempt == case.attempt


def _may_be_of(incident: Incident, case: _Case) -> bool:
    return incident.verdict.verdict in (*case.kind.verdicts, *case.kind.also) and _near(
        incident, case
    )


def _told_of(case: _Case, state: RunState) -> list[Incident]:
    """The incidents that can be about this fault, by class and time."""
    soonest = case.fault.injected_ns - _CLOCKS_NS
    return [
        incident
        for incident in state.incidents
        if incident.verdict.verdict in case.kind.verdicts
        and incident.detected_ns >= soonest
        and _near(incident, case)
    ]


def _names(incident: Incident, case: _Case, state: RunState) -> bool:
    """Whether it names whom the fault was done to, or need not."""
    if case.kind.blame != "target" or case.kind.area == "checkpoint":
        return True
    return bool(targets(case.fault, state) & set(incident.verdict.first_failing))


def _row(case: _Case, cases: Sequence[_Case], state: RunState) -> Row:
    kind, incident = case.kind, case.incident
    shown = incident or next(iter(case.stray), None)
    answers = {
        "class": _class(case, cases),
        "ranks": _ranks(case, cases, state),
        "innocents": _innocents(case, cases, state),
        "action": _action(case),
    }
    return Row(
        kind=kind.name,
        target=whom(case.fault.fault),
        said="nothing" if shown is None else shown.verdict.verdict,
        ranks=() if shown is None else tuple(shown.verdict.first_failing),
        action="none" if shown is None else shown.action,
        mttd=None if incident is None else _seconds(case.fault, incident),
        wrong={question: says for question, says in answers.items() if says},
    )


def _seconds(fault: FaultInjected, incident: Incident) -> float:
    return (incident.detected_ns - fault.injected_ns) / 1e9


def _expected(done: Executed) -> str:
    if not done.plan.faults:
        return "nothing"
    return kinds.find(done.plan.faults[0].fault.kind).expected


def targets(fault: FaultInjected, state: RunState) -> set[int]:
    """The ranks that a fault was done to."""
    if fault.fault.rank != ANY:
        return {fault.fault.rank}
    node = max(fault.fault.node, 0)
    return {
        rank.rank
        for attempt in state.attempts
        for rank in attempt.ranks.values()
        if rank.node_rank == node
    }


def _done(done: Executed) -> Check:
    asked = sum(planned.fault.times for planned in done.plan.faults)
    missing = asked - len(done.state.faults)
    if done.refused or missing > 0:
        why = "; ".join(done.refused) or f"{missing} of {asked} were not done"
        return Check(name="done", ok=False, says=why)
    return Check(name="done", ok=True, says=f"{asked} done")


OF_EACH = {
    "class": "as it must be",
    "ranks": "as they were",
    "innocents": "none blamed",
    "action": "as it must be",
}
"""Questions to each fault, and what is said where all is right."""


def _asked_of_each(rows: Sequence[Row], early: Sequence[Incident]) -> list[Check]:
    """What is asked of each fault, as questions to the run. `early` was said before any harm."""
    found = []
    for name, right in OF_EACH.items():
        wrong = [row.wrong[name] for row in rows if name in row.wrong]
        if name == "class":
            wrong += [_words(incident) for incident in early]
        if name == "innocents":
            wrong += [f"blamed: {_text(i.verdict.first_failing)}" for i in early]
        told = [row.said if name == "class" else row.action for row in rows]
        says = ", ".join(told) if told and name in ("class", "action") else right
        found.append(Check(name=name, ok=not wrong, says="; ".join(wrong) or says))
    return found


def _words(incident: Incident) -> str:
    return f"{incident.verdict.verdict} of ranks {_text(incident.verdict.first_failing)}"


def _class(case: _Case, cases: Sequence[_Case]) -> str:
    """What is wrong: what must be told is not, or something else is."""
    wrong = [_words(incident) for incident in case.stray]
    told = case.incident is not None or _takes_head(case) or _covered(case, cases)
    if case.kind.verdicts and not told:
        wanted = " or ".join(case.kind.verdicts)
        wrong.insert(0, f"{case.kind.name} of {whom(case.fault.fault)} is not told as {wanted}")
    return "; ".join(wrong)


def _takes_head(case: _Case) -> bool:
    """Controller and journal go with it: nobody is left to judge, and the exit codes of the other
    nodes tell."""
    return case.kind.name == "node_kill" and case.fault.fault.node <= 0


def _covered(case: _Case, cases: Sequence[_Case]) -> bool:
    """Whether another fault took the rank away before this one could be told: of two ranks that
    are harmed in one attempt only the first may be seen to fail."""
    return any(
        other is not case
        and other.incident is not None
        and other.attempt == case.attempt
        and abs(case.fault.injected_ns - other.fault.injected_ns) < _AT_ONCE_NS
        for other in cases
    )


def _ranks(case: _Case, cases: Sequence[_Case], state: RunState) -> str:
    if case.incident is None or case.kind.blame == "nobody" or case.kind.area == "checkpoint":
        return ""  # a file belongs to whoever wrote it
    named = set(case.incident.verdict.first_failing)
    mine = targets(case.fault, state)
    if case.kind.blame == "pair":
        right = bool(named & mine) or len(named) <= _ENDS
    else:
        right = bool(named & mine) and named <= _harmed(case.incident, cases, state)
    told = f"{case.kind.name} of {whom(case.fault.fault)} was said of ranks {_text(named)}"
    return "" if right else told


def _harmed(incident: Incident, cases: Sequence[_Case], state: RunState) -> set[int]:
    """The ranks that something was done to which can be at work in the incident."""
    found: set[int] = set()
    for case in cases:
        if _near(incident, case):
            found |= targets(case.fault, state)
    return found


def _innocents(case: _Case, cases: Sequence[_Case], state: RunState) -> str:
    """Ranks that were named though nothing was done to them."""
    blamed: set[int] = set()
    for incident in (*([case.incident] if case.incident else []), *case.stray):
        anybody = any(
            each.kind.blame == "pair" or each.kind.area == "checkpoint"
            for each in cases
            if _near(incident, each)
        )
        if not anybody:
            blamed |= set(incident.verdict.first_failing) - _harmed(incident, cases, state)
    return f"blamed: {_text(blamed)}" if blamed else ""


def _text(ranks: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ranks))) or "none"


def _action(case: _Case) -> str:
    if case.incident is None or case.incident.action in case.kind.actions:
        return ""
    return f"{case.incident.action} after {case.kind.name}, not {' or '.join(case.kind.actions)}"


def _stopped(done: Executed) -> bool:
    return any(i.action == "stop" for i in done.state.incidents)


def _outcome(done: Executed, cases: Sequence[_Case]) -> Check:
    """A run that was not stopped comes to its end; one that was says so by its exit code."""
    if done.timed_out:
        return Check(name="outcome", ok=False, says="it did not end in time")
    if _stopped(done):
        return Check(name="outcome", ok=done.code != 0, says=f"stopped with exit code {done.code}")
    if any(_takes_head(case) for case in cases):
        ended = ", ".join("not ended" if code is None else str(code) for code in done.codes)
        lost = int(ExitCode.NODE_LOST)
        says = f"the head is gone; the other nodes ended with {ended or 'nothing'}"
        return Check(name="outcome", ok=all(code == lost for code in done.codes), says=says)
    return Check(name="outcome", ok=done.code == 0, says=f"exit code {done.code}")


def _lost(done: Executed, cases: Sequence[_Case]) -> Check:
    """No more steps done again than since the last checkpoint that was whole; thrice that where it
    was damaged, or where it takes steps to see the harm."""
    every = done.plan.workload.every
    wrong, worst = [], 0
    counted = [i for i in done.state.incidents if i.lost_steps is not None]
    for incident in counted:
        lost = incident.lost_steps or 0
        near = [case.kind for case in cases if _near(incident, case)]
        limit = every * (3 if any(k.area == "checkpoint" or k.steps for k in near) else 1)
        limit += _since_unfinished(incident, lost, every, done.state)
        worst = max(worst, lost)
        if lost > limit:
            wrong.append(f"{lost} done again, {limit} allowed")
    says = "; ".join(wrong) or f"at most {worst} done again"
    return Check(name="lost steps", ok=not wrong if counted else None, says=says)


def _since_unfinished(incident: Incident, lost: int, every: int, state: RunState) -> int:
    """Steps that were made while the newest save was still being written, which is of no use."""
    later = state.attempts[incident.verdict.attempt + 1 :]
    if not later:
        return 0
    furthest = (later[0].resumed_step or 0) + lost
    begun = furthest // every * every
    mark = state.checkpoints.get(begun)
    whole = mark is not None and 0 < mark.whole_ns <= incident.detected_ns
    return 0 if whole else furthest - begun


def _final(done: Executed, calm: Path | None, cases: Sequence[_Case]) -> Check:
    if _stopped(done) or done.code != 0 or not all(case.kind.equal for case in cases):
        return Check(name="final", ok=None, says="not asked")
    if calm is None:
        return Check(name="final", ok=None, says="there is no run without faults to compare with")
    ok, says = same_final(done.plan.workload, calm, done.work)
    return Check(name="final", ok=ok, says=says)
