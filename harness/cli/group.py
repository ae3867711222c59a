"""The click group behind `harness`, and the door through which all errors leave: one line for
what is wrong, one for what to do."""

import importlib
import itertools
import re
import sys
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from harness.cli import COMMANDS, codes, help_text, output
from harness.errors import ExitCode, HarnessError


class LazyGroup(click.Group):
    """Knows its commands by name and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            likely = closest(args[0], COMMANDS, likeness=0.6)
            raise click.UsageError(
                f"no such command: {args[0]}\n"
                + (f"did you mean {likely}?" if likely else "see harness --help")
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """By the names alone: to import all commands for their help would take a second."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=words)
            for name, (_, words) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(help_text())


def _version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from harness.version import version

        click.echo(f"harness {version()}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version)
@click.option("--debug", is_flag=True)
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto")
@click.option("--quiet", "-q", is_flag=True)
@click.option("--verbose", "-v", is_flag=True)
@click.pass_context
def harness(
    ctx: click.Context, debug: bool, colour: output.Colour, quiet: bool, verbose: bool
) -> None:
    """Keeps distributed PyTorch training alive and tells the truth when it breaks."""
    output.set_manner(colour, quiet=quiet, verbose=verbose)
    if ctx.invoked_subcommand is None:
        click.echo(help_text())


def closest(word: str, known: Iterable[str], *, likeness: float = 0.7) -> str:
    """The known word most like `word`, or nothing. `likeness` is difflib's ratio."""
    import difflib

    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else ""


def fail(message: str, help: str | None, exit_code: int, code: str) -> int:
    """Say what is wrong and what to do on stderr; returns the exit code."""
    print(f"error[{code}]: {message}", file=sys.stderr)
    if help:
        print(f"help: {help}", file=sys.stderr)
    return exit_code


def call(arguments: list[str]) -> int:
    """The exit code of `harness ARGUMENTS`; nothing escapes it."""
    try:
        result = harness.main(args=arguments, prog_name="harness", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        return fail(*_words(error, arguments), ExitCode.USAGE, codes.USAGE)
    except HarnessError as error:
        return fail(error.message, error.help, error.exit_code, error.code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return ExitCode.OK
    except Exception as error:  # the border of the process: our own bugs end here
        return _bug(error, arguments)


_BEFORE = frozenset(("--color", "--quiet", "-q", "--verbose", "-v", "--debug", "--version"))
"""Options of `harness` itself."""


def _words(error: click.ClickException, arguments: list[str]) -> tuple[str, str | None]:
    """What is wrong and what to do, of one of click's own errors."""
    command = next((word for word in arguments if word in COMMANDS), "")
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else f"harness {command}".strip()
    where = f"see {path} --help"
    if isinstance(error, click.NoSuchOption):
        if command and error.option_name in _BEFORE:
            return (
                f"no such option of {command}: {error.option_name}",
                f"it stands before the command: harness {error.option_name} … {command}",
            )
        known = {name for name in error.possibilities or () if "_" not in name}
        likely = closest(error.option_name.replace("_", "-"), known)
        if not likely and command == "run":
            where += "; the script's own options go after the script"
        return (
            f"no such option: {error.option_name}",
            f"did you mean {likely}?" if likely else where,
        )
    first, _, rest = error.format_message().partition("\n")
    if isinstance(error, click.MissingParameter):
        first, rest = first.removesuffix(". Choose from:"), ""
    first, asks, likely = first.partition(". Did you mean ")
    if asks:
        meant = likely.strip("'?")
        rest = f"did you mean {meant}?"
    elif isinstance(error, click.BadParameter):
        rest = _choice(error) or rest
    return first[:1].lower() + first[1:].rstrip("."), rest or where


def _choice(error: click.BadParameter) -> str:
    """The choice that was meant, of a parameter that has some."""
    kind = None if error.param is None else error.param.type
    given = re.match(r"'([^']*)'", error.message)
    if not isinstance(kind, click.Choice) or given is None:
        return ""
    likely = closest(given[1], map(str, kind.choices), likeness=0.5)
    return f"did you mean {likely}?" if likely else ""


def _close_stdout() -> None:
    """The reader, `head` perhaps, has gone; Python would complain once more when it exits."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _bug(error: Exception, arguments: list[str]) -> int:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile(
        "w", prefix="harness-bug-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"harness {' '.join(arguments)}\n\n{text}")
    if "--debug" in itertools.takewhile(lambda word: word not in COMMANDS, arguments):
        print(text, file=sys.stderr, end="")
    words = (str(error).splitlines() or [""])[0]
    return fail(
        f"a bug in Harness: {type(error).__name__}: {words}",
        f"the traceback is in {file.name}; please report it",
        ExitCode.INTERNAL,
        codes.INTERNAL,
    )
