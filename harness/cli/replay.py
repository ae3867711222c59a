"""`harness replay`: an old run told again, and judged again by today's rules."""

import time
from collections.abc import Iterator
from typing import Any

import click

from harness import runs
from harness.cli.numbers import Number
from harness.cli.output import note
from harness.cli.reading import (
    SCHEMA,
    SETTINGS,
    ReadingCommand,
    on_this_machine,
    print_json,
    reading_options,
    records,
)
from harness.errors import ExitCode, TooEarly
from harness.incidents import Incident
from harness.state import RunState
from harness.timeline import Moment, Teller
from harness.topology import ranks_name


@click.command("replay", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option(
    "--speed",
    type=Number(above=0),
    metavar="N",
    help="As it happened, N times as fast.  [default: all at once]",
)
@click.option("--quiet", "-q", is_flag=True, help="Only judge again, do not tell.")
def command(
    run: str | None, runs_dir: str | None, as_json: bool, speed: float | None, quiet: bool
) -> int:
    """Tell what happened in RUN (a name, directory or bundle; default: the newest), moment by
    moment, then judge it again from what was seen: does today's Harness say the same?

    \b
      harness replay
      harness replay swift-otter-12 --speed 10
      harness replay bug-report.bundle.tar.gz --json | jq .alike

    Exit code: 0 the verdicts are those of then, 1 they are others. On a screen: harness tui.
    """
    found = on_this_machine(runs.find(run, runs.runs_dir(runs_dir)))
    reading = runs.read(found)
    state = reading.state
    if state.run is None:
        raise TooEarly("the run has written nothing yet", help="wait a moment")
    for text in reading.notes:
        note(text)
    moments = list(_moments(found, state))
    if not as_json and not quiet:
        try:
            _tell(moments, state.started_ns, speed)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    again = _again(found)
    alike = _verdicts(state) == _verdicts(again)
    if as_json:
        print_json(_json(state, again, moments, alike))
    else:
        click.echo("\n".join(_comparison(state, again, alike)))
    return ExitCode.OK if alike else ExitCode.SCRIPT_FAILED


def _moments(found: runs.RunFolder, state: RunState) -> Iterator[Moment]:
    teller = Teller(state)
    for record in records(found, "reading"):
        yield from teller.take(record)
    yield from teller.end()


def _tell(moments: list[Moment], started_ns: int, speed: float | None) -> None:
    began = time.monotonic()
    for moment in moments:
        seconds = max(0.0, (moment.at_ns - started_ns) / 1e9)
        if speed is not None:
            time.sleep(max(0.0, seconds / speed - (time.monotonic() - began)))
        line = " ".join(moment.text.split())
        click.echo(f"+{seconds:9.2f} s  {line if len(line) <= 160 else line[:159] + '…'}")


def _again(found: runs.RunFolder) -> RunState:
    from harness.recovery import replay

    return replay(records(found, "judging again"))


def _verdicts(state: RunState) -> list[tuple[str, tuple[int, ...], str]]:
    """What must come out alike: class, first-failing ranks, action."""
    return [
        (each.verdict.verdict, tuple(sorted(each.verdict.first_failing)), each.action)
        for each in state.incidents
    ]


def _comparison(state: RunState, again: RunState, alike: bool) -> list[str]:
    count = len(state.incidents)
    what = "1 verdict" if count == 1 else f"{count} verdicts"
    if alike:
        return [f"judged again: {what}, alike" if count else "judged again: no incident, as then"]
    lines = ["judged again: otherwise than then"]
    lines += [f"  then  {_words(incident)}" for incident in state.incidents] or ["  then  nothing"]
    lines += [f"  now   {_words(incident)}" for incident in again.incidents] or ["  now   nothing"]
    return lines


def _words(incident: Incident) -> str:
    verdict = incident.verdict
    who = ranks_name(verdict.first_failing) if verdict.first_failing else "the run"
    return f"{verdict.verdict} of {who}, {incident.action}: {verdict.cause}"[:160]


def _json(state: RunState, again: RunState, moments: list[Moment], alike: bool) -> dict[str, Any]:
    """By harness/schemas/replay.schema.json."""
    return {
        "schema": SCHEMA,
        "run": "" if state.run is None else state.run.run,
        "moments": [
            {
                "seconds": max(0, each.at_ns - state.started_ns) / 1e9,
                "what": each.what,
                "text": each.text,
            }
            for each in moments
        ],
        "then": [_verdict_json(each) for each in state.incidents],
        "now": [_verdict_json(each) for each in again.incidents],
        "alike": alike,
    }


def _verdict_json(incident: Incident) -> dict[str, Any]:
    verdict = incident.verdict
    return {
        "class": verdict.verdict,
        "first_failing": sorted(verdict.first_failing),
        "action": incident.action,
        "cause": verdict.cause,
    }
