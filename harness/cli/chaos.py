"""`harness chaos`: break a run on purpose, and judge what is said of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import UsageError


@click.group("chaos", invoke_without_command=True, context_settings=SETTINGS)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Break a run on purpose, and judge what is said of it.

    \b
      harness chaos list
      harness chaos explain loader_stuck
      harness chaos run plan.toml
      harness chaos campaign --kinds kill,stop --workloads ddp --ranks 0,1
      harness chaos replay chaos-runs/failing/kill-ddp-r1.toml
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("missing command: list, explain, run, campaign or replay")


_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
_OUT = click.option(
    "--out", metavar="DIR", default="chaos-runs", show_default=True, help="Where all is written."
)


@command.command(
    "list", cls=ReadingCommand, context_settings=SETTINGS, short_help="All kinds of fault."
)
@_JSON
def list_(as_json: bool) -> None:
    """List all kinds of fault, and what must be said of each."""
    from harness.chaos import kinds

    found = kinds.everything()
    if as_json:
        print_json({"schema": SCHEMA, "kinds": [_kind_json(kind) for kind in found]})
        return
    area = ""
    for kind in found:
        if kind.area != area:
            area = kind.area
            click.echo(area)
        click.echo(f"  {kind.name:<20} {kind.summary}"[:100].rstrip())


@command.command(
    "explain", cls=ReadingCommand, context_settings=SETTINGS, short_help="One kind, in full."
)
@click.argument("kind")
@_JSON
def explain(kind: str, as_json: bool) -> None:
    """Tell what KIND does, what it needs, and what must come of it."""
    from harness.chaos import kinds

    found = kinds.find(kind)
    if as_json:
        print_json({"schema": SCHEMA, **_kind_json(found)})
        return
    by = {"agent": "the agent, from outside", "worker": "in the rank, once it is armed there"}
    rows = [
        (found.name, found.summary),
        ("area", found.area),
        ("done to", "a node" if found.on_node else "a rank"),
        ("done by", by[found.place]),
        ("needs", found.needs or "nothing"),
        ("must be said", kinds.said(found)),
    ]
    rows += [
        (each.name, f"{each.help}  [default: {each.default}]") for each in found.parameters
    ]
    if found.note:
        rows.append(("note", found.note))
    for left, right in rows:
        click.echo(f"{left:<14} {right}")


def _kind_json(kind: Any) -> dict[str, Any]:
    return {
        "name": kind.name,
        "area": kind.area,
        "summary": kind.summary,
        "done_by": kind.place,
        "on_node": kind.on_node,
        "needs": kind.needs or None,
        "verdicts": list(kind.verdicts),
        "also": list(kind.also),
        "actions": list(kind.actions),
        "parameters": [dataclasses.asdict(each) for each in kind.parameters],
        "note": kind.note or None,
    }


@command.command(
    "run", cls=ReadingCommand, context_settings=SETTINGS, short_help="Carry out a plan, judge it."
)
@click.argument("plan", type=click.Path(dir_okay=False))
@_OUT
@click.option("--dry-run", is_flag=True, help="Say what would happen, start nothing.")
@click.option("--no-calm", is_flag=True, help="Do not run it without faults to compare with.")
@_JSON
def run(plan: str, out: str, dry_run: bool, no_calm: bool, as_json: bool) -> int:
    """Carry out the PLAN of a file and judge the run: exit code 0 when all was right, else 1."""
    from harness.chaos import campaign
    from harness.chaos import plan as plans

    found = plans.read(Path(plan))
    if dry_run:
        _tell_plan(found, as_json)
        return 0
    folder = campaign.fresh(Path(out), found.name)
    judgment = campaign.carry_out(
        found, folder, calm=not no_calm, say=lambda text: click.echo(text, err=True)
    )
    if as_json:
        print_json({"schema": SCHEMA, **campaign.as_dict(judgment)})
    else:
        _tell(judgment)
    return 0 if judgment.right else 1


def _tell_plan(plan: Any, as_json: bool) -> None:
    from harness.chaos import executor, kinds
    from harness.faults import when, whom

    commands = executor.commands(plan, Path("DIR"), 0)
    if as_json:
        faults = [dataclasses.asdict(planned) for planned in plan.faults]
        print_json({"schema": SCHEMA, "plan": plan.name, "commands": commands, "faults": faults})
        return
    for line in commands:
        click.echo(f"$ {' '.join(line)}")
    for planned in plan.faults:
        kind = kinds.find(planned.fault.kind)
        at = ",".join(f"{axis}={value}" for axis, value in planned.at.items())
        after = f", after the first {planned.after}" if planned.after else ""
        place = f"the rank at {at}" if at else whom(planned.fault)
        click.echo(f"{kind.name} of {place} {when(planned.fault)}{after}: {kind.summary}")
        click.echo(f"  must be said: {kinds.said(kind)}")


def _tell(judgment: Any) -> None:
    click.echo(judgment.plan)
    marks = {True: "right", False: "WRONG", None: "-"}
    for check in judgment.checks:
        click.echo(f"  {marks[check.ok]:<6} {check.name:<11} {check.says}")
    mttd = "-" if judgment.mttd is None else f"{judgment.mttd:.2f} s"
    click.echo(f"  told {mttd} after the harm; {judgment.seconds:.0f} s in all; {judgment.folder}")


def words(text: str | None) -> tuple[str, ...]:
    """`kill, stop` as two words."""
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def whole_numbers(text: str) -> tuple[int, ...]:
    """`0,2` as numbers. Raises UsageError."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(f"--ranks {text}: not numbers", help="for example 0,1,3") from None


def load(path: Path) -> dict[str, Any]:
    """A file of JSON. Raises UsageError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: not JSON") from None
    return found
