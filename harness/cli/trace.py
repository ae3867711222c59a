"""`harness trace`: a run as a Chrome trace, to be looked at in Perfetto."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

from harness import journal, runs
from harness.cli.logs import parse_ranks
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, counted, note, reading_options
from harness.errors import UsageError
from harness.state import RunState
from harness.trace import Event, Tracer


@click.command("trace", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option("--out", "-o", metavar="FILE", help="Where to.  [default: NAME.trace.json]")
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0-3,7.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="Only attempt N.")
def command(
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
    out: str | None,
    ranks: str | None,
    attempt: int | None,
) -> None:
    """Write RUN (a name or directory; default: the newest) as a Chrome trace: steps, phases and the
    collectives of each rank by process group, with attempts, incidents, loss and memory.

    \b
      harness trace
      harness trace swift-otter-12 --rank 0-7 --attempt 1 -o run.json
      harness trace --json | gzip > run.json.gz

    Open it in https://ui.perfetto.dev or chrome://tracing. --json writes it to stdout.
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    if isinstance(found, runs.Endpoint):
        raise UsageError(
            f"the journal of {found.address} lies on its own machine",
            help="give the run's name or directory there",
        )
    if as_json and out is not None:
        raise UsageError("--json and --out exclude each other", help="leave one out")
    reading = runs.read(found)
    state = reading.state
    if not state.attempts:
        raise UsageError("the run has started no rank yet", help="wait a moment")
    if attempt is not None and attempt >= len(state.attempts):
        raise UsageError(f"the run has no attempt {attempt}", help=_attempts(state))
    for text in reading.notes:
        note(text)
    chosen = None if ranks is None else parse_ranks(ranks)
    tracer = Tracer(state, ranks=chosen, attempt=attempt)
    for record in counted(
        journal.read(found.journal, on_bad="skip", say=lambda _: None), "reading"
    ):
        tracer.take(record)
    if as_json:
        _write(sys.stdout, tracer.events(), state)
        return
    path = Path(out or f"{found.name}.trace.json")
    try:
        with path.open("w", encoding="utf-8") as file:
            count = _write(file, tracer.events(), state)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
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
