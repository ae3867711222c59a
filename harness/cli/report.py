"""`harness report`: what happened in a run, and why."""

from pathlib import Path

import click

from harness import runs
from harness.cli.completing import complete_files
from harness.cli.output import note
from harness.cli.reading import (
    SETTINGS,
    ReadingCommand,
    on_this_machine,
    print_json,
    reading_options,
    records,
)
from harness.errors import OutputError, TooEarly, UsageError
from harness.incidents import Incident
from harness.sizes import size_text
from harness.state import RunState

_NEWEST = "newest"


@click.command("report", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option(
    "--card",
    is_flag=False,
    flag_value=_NEWEST,
    metavar="[N]",
    help="Only the card of incident N, or of the newest.",
)
@click.option(
    "--html",
    metavar="FILE",
    shell_complete=complete_files,
    help="Write one page that needs nothing else; - is stdout.",
)
def command(
    run: str | None, runs_dir: str | None, as_json: bool, card: str | None, html: str | None
) -> None:
    """Tell what happened in RUN (a name, directory, bundle or HOST:PORT; default: the newest).

    \b
      harness report
      harness report swift-otter-12 --card 1
      harness report --json | jq '.incidents[].class'
      harness report --html report.html
    """
    from harness import report

    if card is not None and card != _NEWEST and not card.isdecimal():
        if run is not None:
            raise UsageError(f"--card {card}: an incident is a number, from 1")
        run, card = card, _NEWEST  # `report --card RUN`: the word after --card was the run
    if html is not None and (as_json or card is not None):
        raise UsageError("--html goes with neither --json nor --card", help="leave one out")
    found = runs.find(run, runs.runs_dir(runs_dir))
    reading = runs.read(found)
    state = reading.state
    if state.run is None:
        raise TooEarly(
            "the run has written nothing yet", help="wait a moment, or see what it printed"
        )
    for text in reading.notes:
        note(text)
    if html is not None:
        _write_page(html, _page(found, state))
    elif card is not None:
        incident = _incident(state, card)
        if as_json:
            print_json(report.incident_json(state, incident))
        else:
            click.echo(report.card(state, incident))
    elif as_json:
        print_json(report.report_json(state))
    else:
        click.echo(report.report_text(state, gone=runs.is_gone(found, state)))


def _page(found: runs.RunFolder | runs.Endpoint, state: RunState) -> str:
    from harness.page import History, page
    from harness.version import version

    history = History()
    for record in records(on_this_machine(found), "reading"):
        history.take(record)
    return page(state, history, version=version(), gone=runs.is_gone(found, state))


def _write_page(target: str, text: str) -> None:
    if target == "-":
        click.echo(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}") from None
    click.echo(f"{target}: {size_text(len(text.encode()))}; open it in a browser", err=True)


def _incident(state: RunState, which: str) -> Incident:
    if not state.incidents:
        raise TooEarly("the run has no incident", help="see harness report for what it did")
    if which == _NEWEST:
        return state.incidents[-1]
    for incident in state.incidents:
        if incident.id == int(which):
            return incident
    known = ", ".join(str(incident.id) for incident in state.incidents)
    raise TooEarly(f"the run has no incident {which}", help=f"its incidents: {known}")
