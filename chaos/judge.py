"""Was the run judged rightly, and is the job whole? Compares what a plan did with what was said.

Knows nothing of how faults are done: a plan's kinds say what must come of them, the journal says
what came.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.chaos import kinds
from harness.chaos.executor import Executed
from harness.chaos.kinds import Kind
from harness.chaos.workloads import same_final
from harness.events import FaultInjected
from harness.faults import ANY, whom
from harness.incidents import Incident
from harness.state import RunState

_CLOCKS_NS = 500_000_000
"""By which clocks of nodes may differ: what was said before the harm is not said of it."""
_ENDS = 2
"""Of a connection: where it was cut, either may be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question. `ok` None: it could not be asked, or need not be."""

    name: str
    ok: bool | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault that was done, and what was said of it; `nothing` where no incident fits."""

    kind: str
    target: str
    said: str
    ranks: tuple[int, ...]
    action: str
    mttd: float | None
    """Seconds from the harm to the verdict."""


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


def judge(done: Executed, calm: Path | None) -> Judgment:
    """Compare what was done with what was said. `calm` is where the same run without
    faults wrote."""
    state = done.state
    harms = [(fault, kinds.find(fault.fault.kind)) for fault in state.faults]
    story = [(fault, kind, _told_of(fault, kind, state)) for fault, kind in harms]
    checks = [_done(done), _classes(story, state), _ranks(story, state), _innocents(harms, state)]
    checks += [_actions(story), _outcome(done, story), _lost(done, story)]
    checks += [
        _final(done, calm, story),
        Check(name="residue", ok=not done.residue, says=done.residue.words()),
    ]
    first = story[0] if story else None
    incident = first[2] if first else None
    shown = incident or next(iter(state.incidents), None)
    return Judgment(
        plan=str(done.plan),
        checks=tuple(checks),
        rows=tuple(_row(*told) for told in story),
        expected=_expected(done),
        said="nothing" if shown is None else shown.verdict.verdict,
        ranks=() if shown is None else tuple(shown.verdict.first_failing),
        mttd=None if first is None else _row(*first).mttd,
        lost_steps=None if incident is None else incident.lost_steps,
        seconds=done.seconds,
        folder=str(done.folder),
    )


Story = list[tuple[FaultInjected, Kind, Incident | None]]


def _row(fault: FaultInjected, kind: Kind, incident: Incident | None) -> Row:
    if incident is None:
        return Row(
            kind=kind.name, target=whom(fault.fault), said="nothing", ranks=(), action="none",
            mttd=None,
        )  # fmt: skip
    return Row(
        kind=kind.name,
        target=whom(fault.fault),
        said=incident.verdict.verdict,
        ranks=tuple(incident.verdict.first_failing),
        action=incident.action,
        mttd=(incident.detected_ns - fault.injected_ns) / 1e9,
    )


def _expected(done: Executed) -> str:
    if not done.plan.faults:
        return "nothing"
    kind = kinds.find(done.plan.faults[0].fault.kind)
    return kind.verdicts[0] if kind.verdicts else "nothing"


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


def _told_of(fault: FaultInjected, kind: Kind, state: RunState) -> Incident | None:
    """The incident that is about this fault, if there is one."""
    wanted = targets(fault, state)
    fits = [i for i in state.incidents if i.verdict.verdict in kind.verdicts]
    if kind.blame == "target" and kind.area != "checkpoint":
        fits = [i for i in fits if wanted & set(i.verdict.first_failing)]
    return next((i for i in fits if i.detected_ns >= fault.injected_ns - _CLOCKS_NS), None)


def _done(done: Executed) -> Check:
    asked = sum(planned.fault.times for planned in done.plan.faults)
    missing = asked - len(done.state.faults)
    if done.refused or missing > 0:
        why = "; ".join(done.refused) or f"{missing} of {asked} were not done"
        return Check(name="done", ok=False, says=why)
    return Check(name="done", ok=True, says=f"{asked} done")


def _classes(story: Story, state: RunState) -> Check:
    """Each fault that must be told is, and nothing else is told."""
    wrong = []
    allowed: set[str] = set()
    for fault, kind, incident in story:
        allowed |= {*kind.verdicts, *kind.also}
        if kind.verdicts and incident is None and not _covered(fault, kind, story):
            wanted = " or ".join(kind.verdicts)
            wrong.append(f"{kind.name} of {whom(fault.fault)} is not told as {wanted}")
    for each in state.incidents:
        if each.verdict.verdict not in allowed:
            ranks = ",".join(map(str, each.verdict.first_failing))
            wrong.append(f"{each.verdict.verdict} of ranks {ranks}")
    told = ", ".join(i.verdict.verdict for i in state.incidents) or "nothing"
    return Check(name="class", ok=not wrong, says="; ".join(wrong) or told)


def _covered(fault: FaultInjected, kind: Kind, story: Story) -> bool:
    """Whether another fault took the rank away before this one could be told: of two ranks that
    are harmed in one attempt only the first may be seen to fail."""
    return any(
        incident is not None and abs(fault.injected_ns - other.injected_ns) < 10_000_000_000
        for other, _, incident in story
        if other is not fault
    )


def _ranks(story: Story, state: RunState) -> Check:
    wrong = []
    everybody: set[int] = set()
    for fault, _, _ in story:
        everybody |= targets(fault, state)
    for fault, kind, incident in story:
        if incident is None or kind.blame == "nobody":
            continue
        named = set(incident.verdict.first_failing)
        mine = targets(fault, state)
        if kind.blame == "pair":
            right = bool(named & mine) or len(named) <= _ENDS
        elif kind.area == "checkpoint":
            right = True  # a file belongs to whoever wrote it
        else:
            right = bool(named & mine) and named <= everybody
        if not right:
            wrong.append(f"{kind.name} of {whom(fault.fault)} was said of ranks {_text(named)}")
    return Check(name="ranks", ok=not wrong, says="; ".join(wrong) or "as they were")


def _innocents(harms: Iterable[tuple[FaultInjected, Kind]], state: RunState) -> Check:
    guilty: set[int] = set()
    anybody = False
    for fault, kind in harms:
        guilty |= targets(fault, state)
        anybody = anybody or kind.blame == "pair" or kind.area == "checkpoint"
    blamed = {rank for i in state.incidents for rank in i.verdict.first_failing} - guilty
    if anybody:
        blamed = set()
    return Check(
        name="innocents",
        ok=not blamed,
        says=f"blamed: {_text(blamed)}" if blamed else "none blamed",
    )


def _text(ranks: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ranks))) or "none"


def _actions(story: Story) -> Check:
    wrong = [
        f"{incident.action} after {kind.name}, not {' or '.join(kind.actions)}"
        for _, kind, incident in story
        if incident is not None and incident.action not in kind.actions
    ]
    taken = ", ".join(i.action for _, _, i in story if i is not None) or "none"
    return Check(name="action", ok=not wrong, says="; ".join(wrong) or taken)


def _stopped(done: Executed) -> bool:
    return any(i.action == "stop" for i in done.state.incidents)


def _outcome(done: Executed, story: Story) -> Check:
    """A run that was not stopped comes to its end; one that was says so by its exit code."""
    if done.timed_out:
        return Check(name="outcome", ok=False, says="it did not end in time")
    if _stopped(done):
        return Check(name="outcome", ok=done.code != 0, says=f"stopped with exit code {done.code}")
    if any(kind.name == "node_kill" and f.fault.node <= 0 for f, kind, _ in story):
        return Check(name="outcome", ok=True, says="the head is gone, and the run with it")
    return Check(name="outcome", ok=done.code == 0, says=f"exit code {done.code}")


def _lost(done: Executed, story: Story) -> Check:
    """No more steps done again than since the last checkpoint; two where that was damaged."""
    most = done.plan.workload.every
    damaged = any(kind.area == "checkpoint" for _, kind, _ in story)
    late = any(kind.steps for _, kind, _ in story)
    lost = [i.lost_steps for i in done.state.incidents if i.lost_steps is not None]
    worst = max(lost, default=0)
    limit = most * (3 if damaged or late else 1)
    says = f"{worst} done again, {limit} allowed"
    return Check(name="lost steps", ok=worst <= limit if lost else None, says=says)


def _final(done: Executed, calm: Path | None, story: Story) -> Check:
    if _stopped(done) or done.code != 0 or not all(kind.equal for _, kind, _ in story):
        return Check(name="final", ok=None, says="not asked")
    if calm is None:
        return Check(name="final", ok=None, says="there is no run without faults to compare with")
    ok, says = same_final(done.plan.workload, calm, done.work)
    return Check(name="final", ok=ok, says=says)
