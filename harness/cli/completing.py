"""What Tab offers for the values of arguments and options."""

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from harness.errors import HarnessError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_runs(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of runs, and files where a path is begun: RUN may be a directory or a bundle. Silent
    where there are none."""
    from harness import runs

    if "/" in incomplete or incomplete.startswith((".", "~")):
        return complete_files(ctx, param, incomplete)
    try:
        names = runs.run_names(runs.runs_dir(ctx.params.get("runs_dir")))
    except HarnessError:  # settings that cannot be read: the command itself will tell
        return []
    found = [name for name in [*names, runs.LATEST] if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found]


def complete_files(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The shell's own way with files."""
    return [CompletionItem(incomplete, type="file")]


def complete_folders(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The shell's own way with directories."""
    return [CompletionItem(incomplete, type="dir")]


def one_of(values: Sequence[str]) -> Complete:
    def complete(
        _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]

    return complete


runs_dir_option = click.option(
    "--runs-dir",
    metavar="DIR",
    help="Where runs are.  [default: runs]",
    shell_complete=complete_folders,
)
