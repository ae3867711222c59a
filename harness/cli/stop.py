"""`harness stop`: stop a run as Ctrl-C in its own terminal would."""

import click

from harness import runs
from harness.cli.ask import ask, tell
from harness.cli.completing import complete_runs, runs_dir_option
from harness.cli.reading import SETTINGS, ReadingCommand
from harness.orders import Command, Preempt, StopRun


@click.command("stop", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--save", is_flag=True, help="Have all ranks save at one step first.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(run: str | None, save: bool, runs_dir: str | None, as_json: bool) -> None:
    """Stop RUN (a name, a directory or HOST:PORT): all workers get SIGTERM, then SIGKILL.

    With --save as a preemption does: the ranks of a script that asks harness.should_stop, or saves
    with harness.Checkpointer, first save a checkpoint, all at the same step.

    \b
      harness stop
      harness stop swift-otter-12 --save
    """
    wish: Command = StopRun(why="harness stop", signal=0)
    if save:
        wish = Preempt(why="harness stop --save")
    answer = ask(runs.find(run, runs.runs_dir(runs_dir)), wish)
    tell(answer or "stopping", done=True, as_json=as_json)
