"""The pages of the site that are made from the program: commands, settings, faults, verdicts.

Each function returns Markdown. Only harness is needed; site_hooks.py puts them into the site.
"""

import html
import importlib
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

import harness
from harness.chaos import kinds
from harness.cli import COMMANDS
from harness.cli.codes import CODES
from harness.cli.explain import PAGES, title
from harness.incidents import CATALOGUE
from harness.settings import GROUPS, REFUSED, SETTINGS, Setting

ROOT = Path(harness.__file__).resolve().parents[1]


def commands() -> str:
    """Every command with its options, as `--help` has them."""
    parts = [
        "# All commands",
        "Made from the program; `harness COMMAND --help` prints the same. What is common to all,"
        " and the exit codes, stand in [The command line](../cli.md).",
    ]
    for name, (module, summary) in COMMANDS.items():
        command = importlib.import_module(module).command
        parts.append(f"## {name} {{#{name}}}")
        if name == "run":
            parts.append(
                f"Usage: `harness run [OPTIONS] SCRIPT [ARGS]...`\n\n{summary} Its options are the"
                " [settings](settings.md); `--dry-run` checks everything and prints the plan as"
                " JSON, `--help-all` prints all options."
            )
        else:
            parts += _command(command, name)
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, name: str) -> Iterable[str]:
    context = click.Context(command, info_name=f"harness {name}", max_content_width=100)
    yield f"Usage: `harness {name} {' '.join(command.collect_usage_pieces(context))}`"
    yield _prose(inspect.cleandoc(command.help or ""))
    rows = [param.get_help_record(context) for param in command.get_params(context)]
    options = [row for row in rows if row is not None and "--help" not in row[0].split(", ")]
    if options:
        yield _table(("option", ""), [(_code(left), _cell(right)) for left, right in options])
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            inner = command.get_command(context, child)
            if inner is not None and not inner.hidden:
                yield f"### {name} {child} {{#{name}-{child}}}"
                yield from _command(inner, f"{name} {child}")


def _prose(text: str) -> str:
    """A command's help as Markdown: paragraphs that click is told not to wrap are code."""
    parts = []
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            lines = inspect.cleandoc(paragraph.lstrip().removeprefix("\b").lstrip("\n"))
            parts.append(f"```\n{lines}\n```")
        else:
            parts.append(_cell(" ".join(paragraph.split())))
    return "\n\n".join(parts)


def settings() -> str:
    """Every setting of a run, by group."""
    parts = [
        "# All settings",
        "Every setting of `harness run` can stand on the command line, in a variable"
        " `HARNESS_<NAME>`, or under its name in `harness.toml`; which counts is said in"
        " [The command line](../cli.md#settings). Those marked t are torchrun's: there `PET_<NAME>`"
        " counts too.",
    ]
    for group in GROUPS:
        rows = [
            (_code(_spelled(each)), _code(each.name), _default(each), "t" if each.pet else "",
             _cell(each.help.partition("  [default")[0]))
            for each in SETTINGS if each.group == group
        ]  # fmt: skip
        parts.append(f"## {group}\n\n" + _table(("option", "name", "default", "", "what"), rows))
    return "\n\n".join(parts) + "\n"


def torchrun_options() -> str:
    """What becomes of each option of torchrun, as a table."""
    taken = [(_code(_spelled(each)), _cell(each.help)) for each in SETTINGS if each.pet]
    refused = [
        (f"`--{name.replace('_', '-')}`", f"refused: {_cell(instead)}")
        for name, instead in REFUSED.items()
    ]
    return _table(("torchrun's option", "here"), [*taken, *refused])


def _spelled(setting: Setting) -> str:
    words = ", ".join(filter(None, (setting.short, setting.option)))
    values = setting.metavar or "|".join(setting.choices)
    return f"{words} {values}".strip()


def _default(setting: Setting) -> str:
    if "  [default: " in setting.help:
        return _cell(setting.help.partition("  [default: ")[2].rstrip("]"))
    if setting.kind == "flag":
        return "on" if setting.default else "off"
    if setting.default in (None, ""):
        return ""
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
    return f"`{shown}`"


def faults() -> str:
    """Every kind of fault, by area."""
    parts = [
        "# Kinds of fault",
        "Made from the program; `harness chaos list` and `harness chaos explain KIND` print the"
        " same. How faults are addressed, planned and judged stands in"
        " [Break it on purpose](../chaos.md).",
    ]
    area = ""
    for kind in kinds.everything():
        if kind.area != area:
            area = kind.area
            parts.append(f"## {area}")
        parts.append(f"### {kind.name} {{#{kind.name}}}\n\n{_cell(kind.summary.capitalize())}.")
        whom = "--node 1" if kind.on_node else "--rank 1"
        rows = [
            ("must be said", _linked(kinds.said(kind))),
            *([("may be said too", _linked(", ".join(kind.also)))] if kind.also else []),
            *([("needs", _cell(kind.needs))] if kind.needs else []),
            *(
                (f"`--set {each.name}={each.default}`", _cell(each.help))
                for each in kind.parameters
            ),
            *([("note", _cell(kind.note))] if kind.note else []),
        ]
        parts.append(_table(("try it", f"`harness inject {kind.name} {whom}`"), rows))
    return "\n\n".join(parts) + "\n"


def _linked(text: str) -> str:
    """`text` with classes of verdict as links to their pages."""
    known = _pages()
    words = re.split(r"(\w+)", text)
    return "".join(
        f"[{word}](../verdicts/{word}.md)" if word in known else _cell(word) for word in words
    )


def _pages() -> set[str]:
    return {page.stem for page in PAGES.glob("*.md")}


def verdicts() -> str:
    """The catalogue of verdicts, by family."""
    parts = [
        "# Verdicts",
        "What Harness says when something breaks, and on each page: what it means, how it is seen,"
        " what to do, and a script that reproduces it. `harness explain CODE` prints a page.",
    ]
    for family, classes in verdict_pages():
        rows = [(f"[{name}]({name}.md)", _cell(title(PAGES / f"{name}.md"))) for name in classes]
        parts.append(f"## {family}\n\n" + _table(("verdict", ""), rows))
    return "\n\n".join(parts) + "\n"


def errors() -> str:
    """Errors of the command line, by their codes."""
    rows = [(code, *map(_cell, row)) for code, row in CODES.items()]
    head = (
        "# Errors of the command line\n\nAn error begins with `error[CODE]`; `harness explain CODE`"
        " prints its row, and under `--json` it is `error.id`. A code keeps its meaning.\n\n"
    )
    return (
        head + _table(("code", "what it means", "where it comes from", "what to do"), rows) + "\n"
    )


def verdict_pages() -> Sequence[tuple[str, Sequence[str]]]:
    """The classes that have a page, by family, in the catalogue's order."""
    known = _pages()
    return [
        (family, [name for name in classes if name in known])
        for family, classes in CATALOGUE.items()
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Words of a help text inside a table: nothing in them may be taken for Markdown or HTML."""
    parts = text.split("`")
    for index, part in enumerate(parts):
        code = index % 2 == 1 and index < len(parts) - 1
        plain = re.sub(r"[<*_\[|`]", lambda found: f"&#{ord(found[0])};", part)
        parts[index] = _code(part) if code else plain
    return "".join(parts)


def _code(text: str) -> str:
    """`text` as code inside a table, where a bar would end the cell."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"
