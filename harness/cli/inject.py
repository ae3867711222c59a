"""`harness inject`: do harm to a live run on purpose, now or at its moment."""

import dataclasses
import json
import shlex
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from harness.cli.ask import ask
from harness.cli.completing import complete_runs, runs_dir_option
from harness.cli.numbers import Number, Whole
from harness.cli.reading import SCHEMA, ReadingCommand, print_json
from harness.errors import FaultError, Refused
from harness.faults import ANY, Fault, when, whom
from harness.orders import Inject

if TYPE_CHECKING:
    from harness.runs import Endpoint, RunFolder

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_COUNT = Whole(least=0)


def complete_kinds(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Kinds of fault for the shell to complete."""
    from harness.chaos import kinds

    return [
        CompletionItem(kind.name, help=kind.summary)
        for kind in kinds.everything()
        if kind.name.startswith(incomplete)
    ]


@click.command("inject", cls=ReadingCommand, context_settings=HELP)
@click.argument("kind", shell_complete=complete_kinds)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--rank", type=_COUNT, help="Whom.")
@click.option("--at", metavar="AXIS=N,...", help="Whom, by coordinates: tp=0,pp=1.")
@click.option("--node", type=_COUNT, help="Which node, for kinds that are done to one.")
@click.option("--step", type=_COUNT, help="When: after it has completed so many steps.")
@click.option("--seq-id", type=_COUNT, help="When: it has begun so many collectives.")
@click.option("--phase", help="When: it is in this phase.")
@click.option("--seconds", type=Number(0), help="When: after so many seconds.")
@click.option("--attempt", type=_COUNT, help="Only in this attempt.")
@click.option("--times", type=Whole(least=1), default=1, help="Once in so many attempts.")
@click.option("--seed", type=Whole(), default=0, help="Of what the kind draws.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="The kind's own settings.")
@click.option(
    "--max-ranks",
    type=_COUNT,
    default=2,
    show_default=True,
    help="Refuse to harm more ranks of this run than so many.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen, do nothing.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(
    kind: str, run: str | None, runs_dir: str | None, dry_run: bool, as_json: bool, max_ranks: int,
    **given: Any,
) -> None:  # fmt: skip
    """Do harm of KIND to RUN (a name, a directory or HOST:PORT; default: the newest).

    Only runs started with --chaos-allowed take it. `harness chaos list` shows all kinds,
    `harness chaos explain KIND` what must come of one.

    \b
      harness inject kill --rank 5
      harness inject flip_parameter --at tp=0,pp=1,dp=0 --step 40 --set bit=12 swift-otter-12
    """
    from harness import runs
    from harness.chaos import kinds

    found = kinds.find(kind)
    # Looked at first, so that a wrong line is refused whatever the run does.
    fault = _fault(kind, given)
    kinds.check(dataclasses.replace(fault, rank=0) if given["at"] else fault)
    its_run = runs.find(run, runs.runs_dir(runs_dir))
    fault = _on_run(fault, given["at"], its_run, max_ranks)
    if dry_run:
        words = f"{kind} of {whom(fault)} {when(fault)}: {found.summary}"
        lines = [words, f"must be said: {kinds.said(found)}"]
    else:
        answer = ask(its_run, Inject(fault=fault))
        lines = [f"{answer}; due {when(fault)}" if answer else f"{kind} of {whom(fault)}"]
    if as_json:
        print_json({"schema": SCHEMA, "done": not dry_run, "fault": _json(fault), "says": lines[0]})
        return
    for line in lines:
        click.echo(line, err=not dry_run)


def read_line(line: str, its_run: "RunFolder | Endpoint") -> Fault:
    """The fault that `harness inject LINE` would do to the run. Raises UsageError as it would."""
    try:
        with command.make_context("inject", shlex.split(line)) as ctx:
            given = ctx.params
    except ValueError as error:
        raise FaultError(f"{line}: {error}") from None
    except click.exceptions.Exit:
        raise FaultError(f"{line}: no fault", help="for example kill --rank 5") from None
    except click.ClickException as error:
        raise FaultError(error.format_message()) from None
    for name in ("run", "runs_dir", "as_json", "dry_run"):
        if given.pop(name):
            raise FaultError(f"{name.replace('_', '-')} is not given here")
    from harness.chaos import kinds

    kind, most = given.pop("kind"), given.pop("max_ranks")
    fault = _fault(kind, given)
    kinds.check(dataclasses.replace(fault, rank=0) if given["at"] else fault)
    return _on_run(fault, given["at"], its_run, most)


def _fault(kind: str, given: dict[str, Any]) -> Fault:
    if given["at"] and given["rank"] is not None:
        raise FaultError("--at and --rank exclude each other", help="leave one out")
    parameters = {}
    for each in given["sets"]:
        name, sign, value = each.partition("=")
        if not sign:
            raise FaultError(f"--set {each}: no value", help=f"write --set {name}=VALUE")
        parameters[name] = value
    return Fault(
        kind=kind,
        rank=ANY if given["rank"] is None else given["rank"],
        node=ANY if given["node"] is None else given["node"],
        step=given["step"],
        seq_id=given["seq_id"],
        phase=given["phase"] or "",
        seconds=given["seconds"],
        attempt=given["attempt"],
        times=given["times"],
        seed=given["seed"],
        parameters=parameters,
    )


def _on_run(fault: Fault, at: str | None, its_run: "RunFolder | Endpoint", max_ranks: int) -> Fault:
    """`fault` with its rank on this run. Raises UsageError when the run does not take it."""
    from harness import runs
    from harness.chaos.address import rank_at

    state = runs.read(its_run).state
    if state.run is not None and not state.run.chaos_allowed:
        raise Refused(
            "refused: the run was started without --chaos-allowed",
            help="only runs that were started with it may be harmed on purpose",
        )
    if at:
        fault = dataclasses.replace(fault, rank=rank_at(_coordinates(at), state))
    harmed = {each.fault.rank for each in state.injects} | {fault.rank}
    harmed.discard(ANY)
    if len(harmed) > max_ranks:
        raise Refused(
            f"refused: this would be rank number {len(harmed)} that is harmed, {max_ranks} may be",
            help=f"--max-ranks {len(harmed)} allows it",
        )
    return fault


def _coordinates(text: str) -> dict[str, int]:
    found = {}
    for each in text.split(","):
        axis, sign, number = each.strip().partition("=")
        if not sign or not number.isdecimal():
            raise FaultError(f"--at {text}: not coordinates", help="for example tp=0,pp=1")
        found[axis] = int(number)
    return found


def _json(fault: Fault) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(fault)))
    return raw
