"""The command `harness`. What it can do is told here without importing anything to do it."""

import os
import sys
from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("harness.cli.run", "Train: start a script on all ranks, watch it, restart it."),
    "launch": ("harness.cli.launch", "Write what Slurm or Kubernetes needs to place the nodes."),
    "status": ("harness.cli.status", "Say how a run is doing."),
    "tui": ("harness.cli.tui", "Watch a run, live or finished, on a full screen."),
    "stacks": ("harness.cli.stacks", "Show where all ranks are, equal stacks grouped."),
    "logs": ("harness.cli.logs", "Show what ranks printed, equal lines folded."),
    "report": ("harness.cli.report", "Tell what happened in a run, and why."),
    "replay": ("harness.cli.replay", "Tell an old run again, and judge it again."),
    "trace": ("harness.cli.trace", "Write a run as a Chrome trace: collectives by rank and group."),
    "bundle": ("harness.cli.bundle", "Pack a run into one file to give away, without secrets."),
    "explain": ("harness.cli.explain", "Explain a verdict, or an error by its code."),
    "plan": ("harness.cli.plan", "Plan memory, traffic and a layout for a training, beforehand."),
    "analyze": ("harness.cli.analyze", "Name the rank that a hang began with, from its dumps."),
    "attach": ("harness.cli.attach", "Show the stacks of a job that Harness did not start."),
    "ckpt": ("harness.cli.ckpt", "List, verify, prune checkpoints; save one now."),
    "restart": ("harness.cli.restart", "Start all workers again, from the newest checkpoint."),
    "stop": ("harness.cli.stop", "Stop a run."),
    "inject": ("harness.cli.inject", "Do harm to a run on purpose, to see it recover."),
    "chaos": ("harness.cli.chaos", "Break runs on purpose, and judge what is said of them."),
    "doctor": ("harness.cli.doctor", "Check this machine, and whether all ranks run the same."),
    "config": ("harness.cli.config", "Show, check and begin the settings of this folder."),
    "completion": ("harness.cli.completion", "Print what makes Tab complete in bash, zsh or fish."),
}
"""Name -> the module that holds a click command named `command`, and its line in the help."""

COMPLETE = "_HARNESS_COMPLETE"
"""Set by the shell while it completes: what click makes of the name `harness`."""

HELP = """\
Usage: harness [OPTIONS] COMMAND ...

  Keeps distributed PyTorch training alive and tells the truth when it breaks.

Examples:
  harness run --nproc-per-node 8 train.py --lr 3e-4
  harness status
  harness report

Commands:
{commands}

Options:
  --color auto|always|never  Colours on stdout; auto: on a terminal, without NO_COLOR.
  -q, --quiet / -v, --verbose
                             No notes beside the data / what Harness logs, too.
  --debug                    Show the traceback when Harness itself fails.
  --version / -h, --help     Print the version / this; harness COMMAND --help tells more.

RUN in all commands is a run's name, directory or bundle; left out, it is the newest in ./runs."""


def help_text() -> str:
    """What `harness --help` prints."""
    lines = (f"  {name:<10} {words}" for name, (_, words) in COMMANDS.items())
    return HELP.format(commands="\n".join(lines))


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = list(sys.argv[1:] if args is None else args)
    completing = COMPLETE in os.environ  # a shell asks what may come next
    if arguments in ([], ["-h"], ["--help"]) and not completing:
        print(help_text())  # click alone would take longer to import than all the rest
        sys.exit(0)
    try:
        from harness.cli.group import call

        sys.exit(call(arguments))
    except KeyboardInterrupt:  # while it was being imported
        sys.exit(130)
