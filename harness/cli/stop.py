"""`harness stop`: stop a run as Ctrl-C in its own terminal would."""

import click

from harness.cli.ask import ask, tell
from harness.cli.reading import SETTINGS, ReadingCommand, complete_runs
from harness.orders import StopRun


@click.command("stop", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--runs-dir", metavar="DIR", help="Where runs are.  [default: runs]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(run: str | None, runs_dir: str | None, as_json: bool) -> None:
    """Stop RUN (a name, a directory or HOST:PORT): all workers get SIGTERM, then SIGKILL.

    \b
      harness stop
      harness stop swift-otter-12
    """
    answer = ask(run, runs_dir, StopRun(why="harness stop", signal=0))
    tell(answer or "stopping", done=True, as_json=as_json)
