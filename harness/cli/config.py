"""`harness config`: what is set here and by whom, whether it is right, and a file to begin with."""

import json
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from harness import config as configuration
from harness.cli.completing import complete_files, complete_runs, runs_dir_option
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.config import Origin
from harness.errors import Elsewhere, ExitCode, OutputError, SettingsError, UsageError
from harness.settings import BY_NAME, GROUPS, Setting, Value
from harness.settings import SETTINGS as ALL

FILE = "harness.toml"


@click.group("config", invoke_without_command=True, context_settings=SETTINGS)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Settings of harness run in this folder: what counts, and where it comes from.

    \b
      harness config show --origin
      harness config validate
      harness config init

    Strongest first: command line, HARNESS_<NAME>, PET_<NAME> where torchrun reads it,
    ./harness.toml, [tool.harness] of ./pyproject.toml, ~/.config/harness/config.toml, default.
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("missing command: show, validate or init")


def complete_names(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Settings for the shell to complete."""
    return [
        CompletionItem(each.name, help=each.help)
        for each in ALL
        if each.name.startswith(incomplete.replace("-", "_"))
    ]


@command.command(
    "show", cls=ReadingCommand, context_settings=SETTINGS, short_help="What counts here."
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_names)
@click.option("--origin", is_flag=True, help="Where each value comes from.")
@click.option("--all", "every", is_flag=True, help="Defaults too.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Of a run, as it was started, instead.",
)
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def show(
    names: tuple[str, ...],
    origin: bool,
    every: bool,
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Print the settings NAME, or all that are not defaults, as harness.toml has them.

    \b
      harness config show --origin
      harness config show max_restarts stop-grace
      harness config show --run swift-otter-12 --all
    """
    values = _effective() if run is None else _of_run(run, runs_dir)
    chosen = [_known(name) for name in names]
    shown = {
        name: values[name]
        for name in (chosen or list(values))
        if chosen or every or values[name].origin != "default"
    }
    if as_json:
        told = {name: {"value": v.value, "origin": v.origin} for name, v in shown.items()}
        print_json({"schema": SCHEMA, "settings": told})
        return
    if not shown:
        click.echo(f"nothing is set: all {len(values)} settings are defaults (--all shows them)")
        return
    lines = {name: f"{name} = {_toml(value.value)}" for name, value in shown.items()}
    width = min(48, max(map(len, lines.values())))
    for name, line in lines.items():
        click.echo(f"{line:<{width}}  # {shown[name].origin}" if origin else line)


@command.command(
    "validate", cls=ReadingCommand, context_settings=SETTINGS, short_help="All that is wrong."
)
@click.argument("file", required=False, shell_complete=complete_files)
@click.option("--strict", is_flag=True, help="Variables that look mistyped are wrong too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def validate(file: str | None, strict: bool, as_json: bool) -> int:
    """Check FILE, or the files and variables that count in this folder, and say all that is wrong.

    \b
      harness config validate
      harness config validate conf/big.toml
      harness config validate --strict --json

    Exit code: 0 all is right, 2 something is wrong.
    """
    files = _files(file)
    problems: list[UsageError] = []
    counts: dict[str, int] = {}
    for path, table in files:
        counts[str(path)], wrong = configuration.file_problems(path, table)
        problems += wrong
    odd = [] if file is not None else configuration.unknown_variables(os.environ)
    if file is None:
        problems += configuration.variable_problems(os.environ)
    if strict:
        problems += [UsageError(text, help="unset it, or correct its name") for text in odd]
    if as_json:
        print_json(_json(counts, problems, odd))
    else:
        for problem in problems:
            click.echo(f"error[{problem.code}]: {problem.message}")
            if problem.help:
                click.echo(f"help: {problem.help}")
        for text in [] if strict else odd:
            click.echo(f"warning: {text}")
        click.echo(_summary(counts, problems))
    return ExitCode.USAGE if problems else ExitCode.OK


@command.command("init", context_settings=SETTINGS, short_help="A harness.toml to begin with.")
@click.option("--force", is_flag=True, help="Replace the one that is there.")
@click.option("--all", "every", is_flag=True, help="With every setting, not the common ones alone.")
def init(force: bool, every: bool) -> None:
    """Write a harness.toml into this folder: every common setting with its default, commented out.

    \b
      harness config init
      harness config init --all --force
    """
    path = Path(FILE)
    if path.exists() and not force:
        raise SettingsError(f"{path} is there already", help="edit it, or replace it with --force")
    try:
        path.write_text(_template(every), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"{path}: everything in it is commented out; harness config show tells what counts")


def _effective() -> dict[str, Origin]:
    return dict(configuration.resolve({}).values)


def _of_run(run: str, runs_dir: str | None) -> dict[str, Origin]:
    """As config.json of a run has them."""
    from harness import runs

    found = runs.find(run, runs.runs_dir(runs_dir))
    if isinstance(found, runs.Endpoint):
        raise Elsewhere("the settings of that run lie on its own machine", help="give its name")
    path = found.path / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
        return {
            name: Origin(value=each["value"], origin=each["origin"])
            for name, each in settings.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: no settings in it ({error})") from None


def _known(name: str) -> str:
    """The setting that `name` means, with dashes or underscores."""
    from harness.cli.group import closest

    plain = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if plain not in BY_NAME:
        likely = closest(plain, BY_NAME)
        raise SettingsError(
            f"no setting is called {name}",
            help=f"did you mean {likely}?" if likely else "harness config show --all lists them",
        )
    return plain


def _toml(value: Value) -> str:
    """As TOML writes it; what is not set has no value there."""
    if value is None:
        return '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    # A string of JSON is one of TOML too.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:g}"


def _files(file: str | None) -> list[tuple[Path, tuple[str, ...]]]:
    if file is None:
        return configuration.config_files(os.environ, Path.cwd())
    path = Path(file)
    if not path.is_file():
        what = "is not a file" if path.exists() else "no such file"
        raise SettingsError(f"{file}: {what}", help="harness config init writes one")
    return [(path, ("tool", "harness") if path.name == "pyproject.toml" else ())]


def _summary(counts: dict[str, int], problems: Iterable[UsageError]) -> str:
    wrong = len(list(problems))
    if wrong:
        return f"{wrong} thing{'' if wrong == 1 else 's'} wrong"
    if not counts:
        return f"no file of settings counts here (harness config init writes {FILE})"
    each = (
        f"{path} ({count} setting{'' if count == 1 else 's'})" for path, count in counts.items()
    )
    return f"all is right: {', '.join(each)}"


def _json(counts: dict[str, int], problems: list[UsageError], odd: list[str]) -> dict[str, Any]:
    """By harness/schemas/config.schema.json."""
    return {
        "schema": SCHEMA,
        "files": [{"path": path, "settings": count} for path, count in counts.items()],
        "problems": [{"message": each.message, "help": each.help} for each in problems],
        "warnings": odd,
    }


def _template(every: bool) -> str:
    lines = [
        "# Settings of `harness run` in this folder. What is commented out has its default.",
        "# The command line and HARNESS_<NAME> are stronger; `harness config show --origin` tells.",
    ]
    for group in GROUPS:
        members = [each for each in ALL if each.group == group and (every or each.common)]
        if members:
            lines += ["", f"# --- {group}"]
        for setting in members:
            lines += ["", *_setting_lines(setting)]
    return "\n".join(lines) + "\n"


def _setting_lines(setting: Setting) -> list[str]:
    words, _, default = setting.help.partition("  [default:")
    words += f" [default:{default}" if default else ""
    if setting.no:
        words = f"false: {words}"
    if setting.choices:
        words += f" ({', '.join(setting.choices)})"
    return [
        *(f"# {line}" for line in textwrap.wrap(words, 96)),
        f"# {setting.name} = {_toml(_sample(setting))}",
    ]


def _sample(setting: Setting) -> Value:
    """The default, or a zero of its kind where nothing is the default."""
    if setting.default is not None or setting.kind == "text":
        return setting.default
    return 0 if setting.kind == "int" else 0.0
