"""`harness restart`: all workers of a run again, from the newest restore point."""

import click

from harness import runs
from harness.cli.ask import ask, tell, user
from harness.cli.completing import complete_runs, runs_dir_option
from harness.cli.reading import SETTINGS, ReadingCommand
from harness.errors import Refused, TooEarly
from harness.orders import RestartRun
from harness.recovery import accept
from harness.state import RunState


@click.command("restart", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--why", metavar="TEXT", help="Told to everybody who reads of it.")
@click.option("--dry-run", is_flag=True, help="Say what it would cost, do nothing.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(
    run: str | None, why: str | None, dry_run: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Stop all workers of RUN (a name, a directory or HOST:PORT; default: the newest) and start
    them again, from the newest checkpoint. No incident is made of it, --max-restarts counts none.

    \b
      harness restart --dry-run
      harness restart --why "new data mounted"
    """
    request = RestartRun(why=why or f"asked for by {user()}")
    found = runs.find(run, runs.runs_dir(runs_dir))
    state = runs.read(found).state
    if state.ended is not None:
        raise TooEarly(f"the run is over: it {state.ended.outcome}", help=_again(state))
    if dry_run:
        accepted, answer = accept(state, request)
        if not accepted:
            raise Refused(f"it would be refused: {answer}")
        tell(answer, done=False, as_json=as_json)
        return
    tell(ask(found, request), done=True, as_json=as_json)


def _again(state: RunState) -> str:
    import shlex

    words = () if state.run is None else state.run.command
    return f"start a new one: harness run [OPTIONS] {shlex.join(words)}"
