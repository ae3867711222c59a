"""`harness ckpt save`: a checkpoint now, of a run that goes on."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from harness import runs
from harness.cli.ask import ask
from harness.cli.output import note
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json, reading_options
from harness.errors import CheckpointError, NodeFailure
from harness.orders import SaveNow
from harness.saving import NOTHING_SAVES, Saving, saving
from harness.state import RunState

if TYPE_CHECKING:
    from harness.tui.feed import Feed

_LOOK_SECONDS = 0.1


@click.command(
    "save", cls=ReadingCommand, context_settings=SETTINGS, short_help="Have a run save one now."
)
@reading_options
@click.option("--no-wait", is_flag=True, help="Only ask for it.")
def command(run: str | None, runs_dir: str | None, as_json: bool, no_wait: bool) -> None:
    """Have all ranks of RUN (a name, a directory or HOST:PORT; default: the newest) save at one
    step, and go on. Returns when the checkpoint is complete; Ctrl-C ends the waiting, not the wish.

    The script must save with harness.Checkpointer.maybe_save, or ask harness.should_save.

    \b
      harness ckpt save
      harness ckpt save swift-otter-12 --json | jq .path
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    request = SaveNow(request=f"{os.getpid()}-{time.time_ns()}")
    answer = ask(found, request)
    if no_wait:
        _tell(answer, None, as_json)
        return
    done = _wait(found, request.request)
    if done.stage == "failed":
        why = "call one of them after every step" if done.words == NOTHING_SAVES else None
        raise CheckpointError(done.words, help=why)
    _tell(done.words, done, as_json)


def _tell(says: str, done: Saving | None, as_json: bool) -> None:
    """By harness/schemas/answer.schema.json."""
    if as_json:
        of = {} if done is None else {"step": done.step, "path": done.path}
        print_json({"schema": SCHEMA, "done": True, "says": says} | of)
    else:
        click.echo(says, err=done is None)


def _wait(found: runs.RunFolder | runs.Endpoint, request: str) -> Saving:
    """What becomes of `request`; says on the way at which step it will be."""
    told = False
    with _following(found) as feed:
        while True:
            with feed.state() as state:
                wish = state.save
                now = saving(state) if wish is not None and wish.request == request else None
                gone = _gone(found, state)
            if now is not None and now.over:
                return now
            if gone or feed.label == "BROKEN":
                why = feed.trouble or "the run is gone without an end: no process of it is left"
                raise NodeFailure(why)
            if now is not None and now.step is not None and not told:
                note(now.words)
                told = True
            time.sleep(_LOOK_SECONDS)


@contextmanager
def _following(found: runs.RunFolder | runs.Endpoint) -> "Iterator[Feed]":
    from harness.tui.feed import controller_feed, journal_feed

    feed = (
        controller_feed(found.address, runs.token(), runs.tls())
        if isinstance(found, runs.Endpoint)
        else journal_feed(found.journal)
    )
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


def _gone(found: runs.RunFolder | runs.Endpoint, state: RunState) -> bool:
    if isinstance(found, runs.Endpoint):
        return False
    facts = runs.controller_facts(found, state)
    return facts is not None and facts.alive is False and not runs.has_agents(state)
