"""`harness inject`: do harm to a run on purpose, now or at a step."""

import click

from harness.cli.ask import ask
from harness.faults import Fault
from harness.orders import Inject

HELP = {"help_option_names": ["-h", "--help"]}


@click.group("inject", context_settings=HELP)
def command() -> None:
    """Do harm to a run on purpose, to see it recover.

    Only runs started with --chaos-allowed take it.

    \b
      harness inject kill --rank 5
      harness inject kill --rank 5 --step 40 swift-otter-12
    """


@command.command("kill", context_settings=HELP)
@click.option("--rank", type=click.IntRange(min=0), required=True, help="Whom.")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    help="When: after it has completed so many steps.  [default: now]",
)
@click.option("--runs-dir", metavar="DIR", help="Where runs are.  [default: runs]")
@click.argument("run", required=False)
def kill(rank: int, step: int | None, runs_dir: str | None, run: str | None) -> None:
    """Kill a rank with SIGKILL, as the kernel does when memory runs out."""
    answer = ask(run, runs_dir, Inject(fault=Fault(kind="kill", rank=rank, step=step)))
    when = "now" if step is None else f"after step {step}"
    click.echo(answer or f"rank {rank} will be killed {when}", err=True)
