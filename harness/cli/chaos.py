"""`harness chaos`: break a run on purpose, and judge what is said of it."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import click

from harness.cli.completing import complete_files, complete_folders
from harness.cli.inject import complete_kinds
from harness.cli.numbers import Number, Whole
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import FaultError
from harness.topology import ranks_name


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


_OPTIONS = "campaign.json"
"""What a campaign was begun with, in its folder."""
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
_OUT = click.option(
    "--out",
    metavar="DIR",
    shell_complete=complete_folders,
    default="chaos-runs",
    show_default=True,
    help="Where all is written.",
)


@command.command(
    "list", cls=ReadingCommand, context_settings=SETTINGS, short_help="All kinds of fault."
)
@_JSON
def list_(as_json: bool) -> None:
    """List all kinds of fault, and what must be said of each.

    \b
      harness chaos list
      harness chaos list --json | jq '.kinds[].name'
    """
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
@click.argument("kind", shell_complete=complete_kinds)
@_JSON
def explain(kind: str, as_json: bool) -> None:
    """Tell what KIND does, what it needs, and what must come of it.

    \b
      harness chaos explain loader_stuck
    """
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
    rows += [(each.name, f"{each.help}  [default: {each.default}]") for each in found.parameters]
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
@click.option("--shrink", "tries", type=Whole(least=0), default=0, show_default=True,
              help="Make a failing plan small, with at most so many runs.")  # fmt: skip
@_JSON
def run(plan: str, out: str, dry_run: bool, no_calm: bool, tries: int, as_json: bool) -> int:
    """Carry out the PLAN of a file and judge the run: exit code 0 when all was right, else 1.

    \b
      harness chaos run plan.toml --dry-run
      harness chaos run plan.toml
      harness chaos run plan.toml --shrink 6
    """
    from harness.chaos import campaign
    from harness.chaos import plan as plans

    found = plans.read(Path(plan))
    if dry_run:
        _tell_plan(found, as_json)
        return 0
    folder = campaign.fresh(Path(out), found.name)

    def say(text: str) -> None:
        click.echo(text, err=True)

    judgment = campaign.carry_out(found, folder, calm=not no_calm, say=say)
    if tries and not judgment.right:
        cell = campaign.Cell(plan=found, judgment=judgment)
        say(f"the smallest that fails so: {campaign.keep_failing(cell, Path(out), tries, say)}")
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
    for row in judgment.rows:
        ranks = f" of {ranks_name(row.ranks)}" if row.ranks else ""
        late = "" if row.mttd is None else f", {row.mttd:.2f} s after"
        click.echo(f"  {row.kind} of {row.target}: {row.said}{ranks}, {row.action}{late}")
    mttd = "-" if judgment.mttd is None else f"{judgment.mttd:.2f} s"
    click.echo(f"  told {mttd} after the harm; {judgment.seconds:.0f} s in all; {judgment.folder}")


@command.command(
    "campaign", cls=ReadingCommand, context_settings=SETTINGS, short_help="Many plans, one table."
)
@click.option("--kinds", "names", metavar="LIST", help="Which kinds.  [default: all that fit]")
@click.option("--areas", metavar="LIST", help="Which areas of kinds, as `chaos list` has them.")
@click.option("--workloads", metavar="LIST", default="ddp", show_default=True)
@click.option("--ranks", metavar="LIST", help="Whom.  [default: first, middle and last]")
@click.option("--combined", is_flag=True, help="Two faults a run, at bad moments, instead.")
@click.option(
    "--series",
    type=Whole(least=1),
    default=1,
    show_default=True,
    help="So many faults in a run, one after the other; what stops it is alone.",
)
@click.option("--hours", type=Number(0), help="Draw plans for so long instead.")
@click.option("--faults", type=Whole(1, 8), default=1, help="A drawn plan has so many.")
@click.option("--minutes", type=Number(0), help="Begin no run after so long.")
@click.option("--nproc", type=Whole(least=2), help="Ranks, in place of the workload's own.")
@click.option("--seed", type=Whole(), default=0, show_default=True)
@click.option("--shrink", "tries", type=Whole(least=0), default=0, show_default=True,
              help="Make failing plans small, with at most so many runs for each.")  # fmt: skip
@click.option(
    "--report", metavar="FILE", shell_complete=complete_files, help="Write the Markdown there too."
)
@click.option(
    "--resume", metavar="DIR", shell_complete=complete_folders,
    help="Go on with that campaign and its options; judged is not done again.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say which runs there would be, start none.")
@_OUT
@_JSON
@click.pass_context
def campaign_(
    context: click.Context,
    /,
    out: str,
    as_json: bool,
    dry_run: bool,
    report: str | None,
    resume: str | None,
    **given: Any,
) -> int:
    """Run many plans and judge each: kinds x workloads x ranks, or drawn from a seed for hours.

    Writes DIR/report.md, DIR/junit.xml and each failing plan to DIR/failing. Exit code 0 when all
    runs were right, else 1.

    \b
      harness chaos campaign --kinds kill,stop --workloads ddp --ranks 0,1
      harness chaos campaign --hours 8 --faults 2 --shrink 6
    """
    from harness.chaos import campaign, tables

    if resume is not None:
        given = _as_before(context, Path(resume), given)
    plans = _plans(**given)
    if dry_run:
        shown = [
            str(plan) for plan in itertools.islice(plans, 1000 if given["hours"] is None else 10)
        ]
        if as_json:
            print_json({"schema": SCHEMA, "plans": shown})
        else:
            click.echo("\n".join(shown) or "no kind fits")
        return 0
    seconds = [
        s for s in (_times(given["hours"], 3600), _times(given["minutes"], 60)) if s is not None
    ]
    folder = campaign.fresh(Path(out), "campaign") if resume is None else Path(resume)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _OPTIONS).write_text(json.dumps(given) + "\n", encoding="utf-8")
    cells = campaign.campaign(
        plans, folder, seconds=min(seconds, default=None), tries=given["tries"],
        say=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    if not cells:
        if min(seconds, default=None) == 0:
            raise FaultError(f"nothing is judged in {folder} yet")
        raise FaultError("no kind fits", help="harness chaos explain KIND tells what it needs")
    text = tables.markdown(cells, _typed(given, report))
    (folder / "junit.xml").write_text(tables.junit(cells), encoding="utf-8")
    for path in (folder / "report.md", *([Path(report)] if report else [])):
        path.write_text(text, encoding="utf-8")
    if as_json:
        found = [campaign.as_dict(cell.judgment) for cell in cells if cell.judgment is not None]
        print_json({"schema": SCHEMA, "dir": str(folder), "judgments": found})
    else:
        click.echo(text, nl=False)
    return 0 if all(cell.right for cell in cells) else 1


def _as_before(context: click.Context, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """`given`, and where an option was not given, what the campaign of `folder` was begun with."""
    if not folder.is_dir():
        raise FaultError(f"--resume {folder}: no such folder")
    try:
        before = json.loads((folder / _OPTIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict):
        raise FaultError(
            f"--resume {folder}: no campaign was begun there ({_OPTIONS} is missing or damaged)"
        )
    source = click.core.ParameterSource.COMMANDLINE
    found = dict(given)
    for option in context.command.params:
        name = option.name or ""
        if name in before and name in given and context.get_parameter_source(name) is not source:
            try:
                found[name] = option.type_cast_value(context, before[name])
            except (click.BadParameter, ValueError, TypeError) as error:
                raise FaultError(f"{folder / _OPTIONS}: {name}: {error}") from None
    return found


def _times(count: float | None, seconds: float) -> float | None:
    return None if count is None else count * seconds


def _typed(given: dict[str, Any], report: str | None) -> str:
    """The command as it was typed, without what only says where."""
    names = {"names": "kinds", "tries": "shrink"}
    defaults = {"workloads": "ddp", "faults": 1, "seed": 0, "tries": 0, "series": 1}
    parts = ["harness chaos campaign"]
    for name, value in given.items():
        if value is None or value is False or value == defaults.get(name):
            continue
        option = f"--{names.get(name, name)}"
        parts.append(option if value is True else f"{option} {value}")
    return " ".join([*parts, *([f"--report {report}"] if report else [])])


def _plans(
    *, names: str | None, areas: str | None, workloads: str, ranks: str | None, combined: bool,
    hours: float | None, faults: int, seed: int, nproc: int | None, series: int, **_: Any,
) -> Any:  # fmt: skip
    from harness.chaos import campaign, kinds
    from harness.chaos import combined as combinations
    from harness.chaos.series import joined
    from harness.chaos.workloads import workload

    chosen = [kinds.find(name) for name in words(names)] or kinds.everything()
    if areas:
        known = {kind.area for kind in kinds.everything()}
        for area in words(areas):
            if area not in known:
                raise FaultError(
                    f"--areas {area}: no such area", help=f"there are {', '.join(sorted(known))}"
                )
        chosen = [kind for kind in chosen if kind.area in words(areas)]
    ones = [workload(name) for name in words(workloads)]
    if nproc is not None:
        ones = [dataclasses.replace(one, nproc=nproc) for one in ones]
    if combined:
        return [plan for one in ones for plan in combinations.plans(one, seed)]
    if hours is not None:
        return campaign.soak(ones, faults, seed)
    singles = campaign.matrix(chosen, ones, whole_numbers(ranks or ""), seed)
    return list(joined(singles, series, seed)) if series > 1 else singles


@command.command(
    "replay", cls=ReadingCommand, context_settings=SETTINGS, short_help="A plan once more."
)
@click.argument("plan", type=click.Path())
@_OUT
@_JSON
def replay(plan: str, out: str, as_json: bool) -> int:
    """Carry out a plan that was kept (DIR/failing/NAME.toml, or the folder of its run) once more,
    with the same seed. Exit code 0 when the run is judged as it was, or is right where that is not
    known.

    \b
      harness chaos replay chaos-runs/failing/kill-ddp-r1.toml
    """
    from harness.chaos import campaign
    from harness.chaos import plan as plans

    path = Path(plan)
    before = load(path / "judgment.json") if (path / "judgment.json").exists() else None
    found = plans.read(path / "plan.toml" if path.is_dir() else path)
    folder = campaign.fresh(Path(out), f"{found.name}-again")
    judgment = campaign.carry_out(found, folder, say=lambda text: click.echo(text, err=True))
    now = campaign.as_dict(judgment)
    if as_json:
        print_json({"schema": SCHEMA, "before": before, "now": now})
    else:
        _tell(judgment)
    if before is None:
        return 0 if judgment.right else 1
    told = ("right", "said", "ranks")
    same = [before.get(name) for name in told] == [json.loads(json.dumps(now))[n] for n in told]
    if not as_json:
        click.echo("  judged as before" if same else f"  before: {before.get('said')}")
    return 0 if same else 1


def words(text: str | None) -> tuple[str, ...]:
    """`kill, stop` as two words."""
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def whole_numbers(text: str) -> tuple[int, ...]:
    """`0,2` as numbers. Raises UsageError."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise FaultError(f"--ranks {text}: not numbers", help="for example 0,1,3") from None


def load(path: Path) -> dict[str, Any]:
    """A file of JSON. Raises UsageError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FaultError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise FaultError(f"{path}: not JSON") from None
    return found
