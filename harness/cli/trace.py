"""`harness trace`: a run as a Chrome trace, to be looked at in Perfetto."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

from harness import runs
from harness.cli.choosing import ranks_where, where_option
from harness.cli.completing import complete_files
from harness.cli.logs import parse_ranks
from harness.cli.numbers import Whole
from harness.cli.output import note
from harness.cli.reading import (
    SCHEMA,
    SETTINGS,
    ReadingCommand,
    on_this_machine,
    reading_options,
    records,
)
from harness.errors import FilterError, OutputError, TooEarly, UsageError
from harness.state import RunState
from harness.trace import Event, Tracer


@click.command("trace", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    shell_complete=complete_files,
    help="Where to.  [default: NAME.trace.json]",
)
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0-3,7.")
@where_option
@click.option("--attempt", type=Whole(least=0), metavar="N", help="Only attempt N.")
def command(
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
    out: str | None,
    ranks: str | None,
    where: str | None,
    attempt: int | None,
) -> None:
    """Write RUN (a name or directory; default: the newest) as a Chrome trace: steps, phases and the
    collectives of each rank by process group, with attempts, incidents, loss and memory.

    \b
      harness trace
      harness trace swift-otter-12 --where 'pp=0 !tp=1' --attempt 1 -o run.json
      harness trace --json | gzip > run.json.gz

    Open it in https://ui.perfetto.dev or chrome://tracing. --json writes it to stdout.
    """
    found = on_this_machine(runs.find(run, runs.runs_dir(runs_dir)))
    if as_json and out is not None:
        raise UsageError("--json and --out exclude each other", help="leave one out")
    reading = runs.read(found)
    state = reading.state
    if not state.attempts:
        raise TooEarly("the run has started no rank yet", help="wait a moment")
    if attempt is not None and attempt >= len(state.attempts):
        raise TooEarly(f"the run has no attempt {attempt}", help=_attempts(state))
    for text in reading.notes:
        note(text)
    chosen = None if ranks is None else parse_ranks(ranks)
    there = ranks_where(state, where)
    if there is not None:
        chosen = there if chosen is None else there & chosen
    if chosen is not None and not chosen & state.attempts[-1].ranks.keys():
        raise FilterError("these ranks are not of this run", help="harness status shows all")
    tracer = Tracer(state, ranks=chosen, attempt=attempt)
    for record in records(found, "reading"):
        tracer.take(record)
    if as_json:
        _write(sys.stdout, tracer.events(), state)
        return
    path = Path(out or f"{found.name}.trace.json")
    try:
        with path.open("w", encoding="utf-8") as file:
            count = _write(file, tracer.events(), state)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"{path}: {count:,} events; open it in https://ui.perfetto.dev", err=True)


def _attempts(state: RunState) -> str:
    count = len(state.attempts)
    return "it has attempt 0 only" if count == 1 else f"it has attempts 0 to {count - 1}"


def _write(file: TextIO, events: Iterator[Event], state: RunState) -> int:
    """One event a line, so that a long run needs no room of its own; returns how many there are."""
    name = "" if state.run is None else state.run.run
    facts = {"schema": SCHEMA, "run": name, "started_ns": state.started_ns}
    file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(facts)}, "traceEvents": [\n')
    count = 0
    for event in events:
        file.write(",\n" if count else "")
        file.write(json.dumps(event, ensure_ascii=False, allow_nan=False))
        count += 1
    file.write("\n]}\n")
    return count
