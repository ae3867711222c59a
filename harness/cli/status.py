"""`harness status`: one screen about a run, and an exit code that says the same."""

import time
from dataclasses import asdict, replace
from typing import Any, Literal

import click

from harness import goodput, runs
from harness.cli.choosing import ranks_where, where_option
from harness.cli.output import note, with_colour
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json, reading_options
from harness.membership import Strike
from harness.state import RunState
from harness.topology import ranks_text
from harness.tui.cells import CULPRITS, TROUBLED, Cell
from harness.tui.view import View, build
from harness.tui.wording import clean, duration_text, loss_text

Health = Literal["healthy", "degraded", "not_running"]
EXIT_CODES: dict[Health, int] = {"healthy": 0, "degraded": 4, "not_running": 3}


@click.command("status", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@where_option
def command(run: str | None, runs_dir: str | None, as_json: bool, where: str | None) -> int:
    """Say how RUN (a name, a directory or HOST:PORT; default: the newest) is doing.

    \b
      harness status
      harness status swift-otter-12
      harness status --json | jq .step
      harness status --where 'state=slow,stale'

    Exit code: 0 healthy, 3 not running (ended, or gone without an end), 4 degraded.
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    reading = runs.read(found)
    state = reading.state
    controller = None
    packed = False
    if isinstance(found, runs.RunFolder):
        controller, packed = runs.controller_facts(found, state), found.packed
    interrupted = runs.is_gone(found, state)
    led = packed or controller is None or controller.alive is not False
    view = build(state, state.last_ns if packed else time.time_ns(), gone=interrupted, led=led)
    health = judge_health(state, view, controller, interrupted)
    chosen = ranks_where(state, where)
    if chosen is not None:
        view = replace(view, cells=tuple(cell for cell in view.cells if cell.rank in chosen))
    if as_json:
        print_json(_as_json(state, view, health, controller, interrupted, reading.notes))
    else:
        for text in reading.notes:
            note(text)
        colour = with_colour()
        name = view.header.run or (found.name if isinstance(found, runs.RunFolder) else run or "")
        for line in _lines(state, view, name, controller, interrupted):
            click.echo(line, color=colour)
    return EXIT_CODES[health]


def judge_health(
    state: RunState, view: View, controller: runs.ControllerFacts | None, interrupted: bool
) -> Health:
    """Not running when it ended or nobody of it lives; degraded when something is amiss now."""
    if state.ended is not None or interrupted:
        return "not_running"
    amiss = (
        any(incident.outcome == "open" for incident in state.incidents)
        or any(cell.state in TROUBLED or not cell.loss_finite for cell in view.cells)
        or any(not node.connected for node in state.nodes.values())
        or state.stage in ("judging", "stopping")
        or (controller is not None and controller.alive is False)
    )
    return "degraded" if amiss else "healthy"


def _as_json(
    state: RunState,
    view: View,
    health: Health,
    controller: runs.ControllerFacts | None,
    interrupted: bool,
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """As harness/schemas/status.schema.json describes it."""
    header, mark = view.header, state.newest_restore_point
    ranks = state.attempt.ranks if state.attempt else {}
    return {
        "schema": SCHEMA,
        "run": header.run,
        "health": health,
        "stage": "interrupted" if interrupted else state.stage,
        "outcome": state.ended.outcome if state.ended is not None else None,
        "exit_code": state.ended.exit_code if state.ended is not None else None,
        "summary": list(view.banner.lines),
        "world_size": header.world_size,
        "mesh": dict(view.axes),
        "attempt": header.attempt,
        "step": header.step,
        "total_steps": header.total_steps or None,
        "loss": header.loss,
        "elapsed_seconds": header.elapsed,
        "ranks": [
            {
                "rank": cell.rank,
                "state": cell.state,
                "phase": cell.phase,
                "step": cell.step,
                "loss": cell.loss,
                "coordinates": state.coordinates.get(cell.rank, {}),
                "node_rank": cell.node_rank,
                "pid": (ranks[cell.rank].pid or None) if cell.rank in ranks else None,
                "collectives": ranks[cell.rank].collectives if cell.rank in ranks else 0,
            }
            for cell in view.cells
        ],
        "nodes": [
            {
                "node_rank": node.node_rank,
                "host": node.host,
                "connected": node.connected,
                "why": node.lost_why,
            }
            for node in state.nodes.values()
        ],
        "strikes": [
            {"host": host, "whys": [s.why for s in strikes], "out": host in state.struck_out}
            for host, strikes in sorted(state.strikes_by_host.items())
        ],
        "incidents": [
            {
                "id": row.id,
                "class": row.verdict,
                "first_failing": list(row.ranks),
                "cause": row.cause,
                "action": row.action,
                "outcome": row.outcome,
                "lost_steps": row.lost_steps,
                "attempt": row.attempt,
                "step": row.step,
            }
            for row in view.incidents
        ],
        "checkpoint": {"step": mark.step, "path": mark.path} if mark is not None else None,
        "resumed": _resumed_json(state),
        "controller": asdict(controller) if controller is not None else None,
        "ledger": goodput.ledger_json(state),
        "notes": list(notes),
    }


def _lines(
    state: RunState,
    view: View,
    name: str,
    controller: runs.ControllerFacts | None,
    interrupted: bool,
) -> list[str]:
    header = view.header
    figures = [
        click.style(name, bold=True),
        "interrupted" if interrupted else header.stage,
        f"attempt {header.attempt}" if header.attempt is not None else "",
        f"step {header.step}" + (f"/{header.total_steps}" if header.total_steps else ""),
        f"loss {loss_text(header.loss)}" if header.loss is not None else "",
        duration_text(header.elapsed),
    ]
    lines = ["  ".join(figure for figure in figures if figure)]
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    first, _, rest = view.banner.lines[0].partition("  ")
    lines.append(click.style(first, fg=colours[view.banner.tone], bold=True) + f"  {rest}")
    lines += [view.banner.lines[1]] if view.banner.lines[1] else []
    lines.append("")
    lines += _table("ranks", _rank_lines(view))
    mark = state.newest_restore_point
    if mark is not None:
        lines += _table("checkpoint", [f"step {mark.step}, whole: {clean(mark.path)}"])
    lines += _table("resumed", _resumed_lines(state))
    lines += _table(
        "incidents", [f"#{row.id} {row.verdict} of {row.who}: {row.fate}" for row in view.incidents]
    )
    lines += _table("strikes", _strike_lines(state))
    lost = [node for node in state.nodes.values() if not node.connected]
    lines += _table("lost nodes", [f"{n.node_rank} {n.host}: {clean(n.lost_why)}" for n in lost])
    if controller is not None and state.ended is None and not interrupted:
        words = {True: "alive", False: "NOT RUNNING", None: "on another machine"}
        restarts = f", restarted {state.incarnations - 1} times" if state.incarnations > 1 else ""
        text = f"{controller.address}, pid {controller.pid}, {words[controller.alive]}{restarts}"
        lines += _table("controller", [text])
    return lines


def _resumed_json(state: RunState) -> dict[str, Any] | None:
    """Where the newest attempt went on from, and what that cost."""
    attempt = state.attempt
    if attempt is None or attempt.resumed_step is None:
        return None
    before = [i for i in state.incidents if i.verdict.attempt == attempt.index - 1]
    lost = before[-1].lost_steps if before else None
    return {"step": attempt.resumed_step, "from": attempt.resumed_from, "lost_steps": lost}


def _resumed_lines(state: RunState) -> list[str]:
    resumed = _resumed_json(state)
    if resumed is None or resumed["from"] == "disk":
        return []
    place = "memory" if resumed["from"] == "memory" else "a neighbour's memory"
    lost = resumed["lost_steps"]
    steps = "" if lost is None else f", {lost} step{'' if lost == 1 else 's'} done again"
    return [f"at step {resumed['step']}, from {place}{steps}"]


def _strike_lines(state: RunState) -> list[str]:
    """Hosts in which failures that count lay, and whether they are left out for it."""
    lines = []
    for host, strikes in sorted(state.strikes_by_host.items()):
        of = ", ".join(f"{_strike_text(strike)} in {strike.run}" for strike in strikes)
        out = "; left out where others can take its place" if host in state.struck_out else ""
        lines.append(f"{clean(host)}: {len(strikes)} ({clean(of)}){out}")
    return lines


def _strike_text(strike: Strike) -> str:
    place = f" of local rank {ranks_text(strike.local_ranks)}" if strike.local_ranks else ""
    return f"{strike.why}{place}"


def _table(title: str, lines: list[str]) -> list[str]:
    """`lines` in one column, the title before the first of them."""
    return [f"{title if at == 0 else '':<11} {line}" for at, line in enumerate(lines)]


def _rank_lines(view: View) -> list[str]:
    """One line for all ranks in the same state, at the same step and phase; trouble first."""
    groups: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in view.cells:
        groups.setdefault((cell.state, cell.step, cell.phase), []).append(cell)
    order = sorted(groups.items(), key=lambda item: (item[0][0] not in CULPRITS, item[1][0].rank))
    texts = [(ranks_text([cell.rank for cell in group]), key, group) for key, group in order]
    width = min(24, max((len(ranks) for ranks, _, _ in texts), default=0))
    lines = []
    for ranks, (state, step, phase), group in texts:
        place = f"  {view.place(group[0])}" if len(group) == 1 else ""
        word = f"{state.replace('_', ' '):<11}"
        if state in CULPRITS:
            word = click.style(word, fg="red", bold=True)
        lines.append(f"{ranks:<{width}}  {word}  step {step}  phase {phase}{place}".rstrip())
    return lines
