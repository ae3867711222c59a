"""The page as a whole, from a state and its history, by the template beside this file."""

from dataclasses import dataclass
from typing import Any

from harness import goodput, report, stacks
from harness.incidents import Incident
from harness.page import drawing
from harness.page.history import History
from harness.state import RunState
from harness.topology import ranks_name

_MOST_INCIDENTS = 50
_MOST_GROUPS = 12
_MOST_FRAMES = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """One incident as the template wants it."""

    incident: Incident
    headline: str
    card: str
    mesh: str
    groups: list[dict[str, Any]]
    sentence: str
    times: str


_TONES = {"succeeded": "good", "failed": "bad", None: "live"}


def page(state: RunState, history: History, *, version: str, gone: bool = False) -> str:
    """HTML of the whole run. Everything that came from the program is escaped by the template.
    `gone`: no process of it is left, though it has not ended."""
    from jinja2 import Environment, PackageLoader  # heavy, and only this needs it

    environment = Environment(
        loader=PackageLoader("harness.page", "."), autoescape=True, trim_blocks=True
    )
    shown = [_incident(state, incident) for incident in state.incidents[:_MOST_INCIDENTS]]
    told = report.report_json(state)
    return environment.get_template("page.html").render(
        run="" if state.run is None else state.run.run,
        command="" if state.run is None else " ".join(state.run.command),
        version=version,
        outcome="interrupted" if gone else told["outcome"] or state.stage,
        tone="bad" if gone else _TONES.get(told["outcome"], "other"),
        exit_code=told["exit_code"],
        reason="" if state.ended is None else state.ended.reason,
        started=report.time_text(state.started_ns),
        seconds=max(0, (state.ended_ns or state.last_ns) - state.started_ns) / 1e9,
        attempts=told["attempts"],
        figures=_figures(told),
        loss=drawing.loss_curve(state, history),
        timeline=drawing.timeline(state, history),
        incidents=shown,
        more_incidents=len(state.incidents) - len(shown),
        legend=drawing.LEGEND,
        ledger=_ledger(state),
        saving=goodput.saving_lines(goodput.advise(state, goodput.ledger(state))),
    )


def _figures(told: dict[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that come first."""
    attempts, ledger = told["attempts"], told["ledger"]
    last = attempts[-1] if attempts else None
    share = ledger["goodput_percent"]
    found = [
        ("ranks", str(last["world_size"]) if last else "none"),
        ("step", str(max((each["step"] for each in attempts), default=0))),
        ("loss", f"{last['loss']:.5g}" if last and last["loss"] is not None else "not told"),
        ("attempts", str(len(attempts))),
        ("incidents", str(len(told["incidents"]))),
        ("goodput", "unknown" if share is None else f"{share:.1f} %"),
    ]
    if ledger["lost_steps"]:
        found.append(("steps done again", str(ledger["lost_steps"])))
    return found


def _ledger(state: RunState) -> list[dict[str, Any]]:
    """Parts of the time, those that were any: name, seconds of the mean rank, share."""
    books = goodput.ledger(state)
    total = books.total_ns or 1
    return [
        {
            "part": part,
            "seconds": ns * books.wall_ns / total / 1e9,
            "share": 100 * ns / total,
        }
        for part, ns in books.parts_ns.items()
        if ns
    ]


def _incident(state: RunState, incident: Incident) -> _Shown:
    verdict = incident.verdict
    attempt = state.attempts[verdict.attempt]
    taken = [
        stacks.of_evidence(rank.evidence, rank.pid)
        for rank in attempt.ranks.values()
        if rank.evidence is not None
    ]
    groups = [_group(group) for group in stacks.grouped(taken)[:_MOST_GROUPS]]
    found = {each.incident: each for each in goodput.incident_times(state)}
    times = found.get(incident.id)
    who = ranks_name(verdict.first_failing) if verdict.first_failing else "the run"
    return _Shown(
        incident=incident,
        headline=f"#{incident.id} {verdict.verdict} of {who}",
        card=report.card(state, incident),
        mesh=drawing.mesh(state, incident),
        groups=groups,
        sentence=stacks.sentence(taken) if taken else "",
        times="" if times is None else report.times_text(times),
    )


def _group(group: stacks.Group) -> dict[str, Any]:
    stack = group.first
    user = stack.user_frame
    frames = [
        {
            "function": stacks.gap_text(at) if frame is None else frame.function,
            "place": "" if frame is None else f"{stacks.short_path(frame.file)}:{frame.line}",
            "user": user is not None
            and frame is not None
            and (frame.file, frame.line) == (user.file, user.line),
        }
        for at, frame in stacks.to_show(stack, _MOST_FRAMES)
    ]
    return {
        "ranks": ranks_name(group.ranks),
        "count": len(group.members),
        "frames": frames,
        "missing": stack.missing or ("nothing was seen" if not stack.frames else ""),
    }
