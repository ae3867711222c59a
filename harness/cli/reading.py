"""What all commands that read a run share: the RUN argument, --json, and errors as JSON."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from harness.cli import codes
from harness.cli.completing import complete_runs, runs_dir_option
from harness.cli.output import counted
from harness.errors import Elsewhere, ExitCode, HarnessError

if TYPE_CHECKING:
    from harness import runs
    from harness.events import Record

SCHEMA = 1

F = TypeVar("F", bound=Callable[..., Any])


class ReadingCommand(click.Command):
    """A command that reads. With --json, an error too is one JSON object on stdout:
    `{"schema": 1, "error": {"code", "id", "message", "help"}}`."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            if as_json:
                self._refuse(error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params.get("as_json"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            self._refuse(error)
        except HarnessError as error:
            _fail(error.exit_code, error.code, error.message, error.help)

    def _refuse(self, error: click.ClickException) -> NoReturn:
        help = f"see harness {self.name} --help"
        _fail(ExitCode.USAGE, codes.USAGE, error.format_message(), help)


def _fail(exit_code: ExitCode, code: str, message: str, help: str | None) -> NoReturn:
    error = {"code": exit_code.name.lower(), "id": code, "message": message, "help": help}
    print_json({"schema": SCHEMA, "error": error})
    raise click.exceptions.Exit(int(exit_code))


def print_json(value: object) -> None:
    """`value` as one line on stdout. NaN and infinity do not exist in JSON and are refused."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def reading_options(function: F) -> F:
    """RUN, --runs-dir and --json, in this order of the help."""
    options = (
        click.argument("run", required=False, shell_complete=complete_runs),
        runs_dir_option,
        click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1."),
    )
    for option in reversed(options):
        function = option(function)
    return function


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def on_this_machine(found: "runs.RunFolder | runs.Endpoint") -> "runs.RunFolder":
    """The run's directory. Raises UsageError when only its controller is known."""
    from harness import runs

    if isinstance(found, runs.Endpoint):
        raise Elsewhere(
            f"the files of the run at {found.address} lie on its own machine",
            help="give the run's name or directory there",
        )
    return found


def records(found: "runs.RunFolder", what: str) -> "Iterator[Record]":
    """All records of a run's journal, damaged ones left out: `runs.read` has named them."""
    from harness import journal

    return counted(journal.read(found.journal, on_bad="skip", say=lambda _: None), what)
