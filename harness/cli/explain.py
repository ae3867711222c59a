"""`harness explain`: the page of a verdict, or of an error of the command line."""

import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem

import harness
from harness.cli.codes import CODES
from harness.cli.codes import text as error_text
from harness.cli.group import closest
from harness.cli.output import with_colour
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import UsageError
from harness.incidents import CATALOGUE, FAMILY_OF

PAGES = Path(harness.__file__).parent / "verdicts"


def complete_classes(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Verdicts for the shell to complete."""
    return [
        CompletionItem(name, help=FAMILY_OF[name])
        for name in _pages()
        if name.startswith(incomplete.lower().replace("-", "_"))
    ] + [
        CompletionItem(code, help=row.title)
        for code, row in CODES.items()
        if incomplete and code.startswith(incomplete.upper())
    ]


@click.command("explain", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("code", required=False, shell_complete=complete_classes)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(code: str | None, as_json: bool) -> None:
    """Explain CODE, a verdict or the number of an error; without one, list all there are.

    \b
      harness explain
      harness explain exception
      harness explain H101
    """
    pages = _pages()
    if code is None:
        _list(pages, as_json)
        return
    word = code.lower().replace("-", "_")
    if (error := word.upper()) in CODES:
        word, family, text = error, "error", error_text(error)
    elif word in pages:
        family, text = FAMILY_OF[word], pages[word].read_text(encoding="utf-8")
    else:
        raise _unknown(code, word, pages)
    if as_json:
        print_json({"schema": SCHEMA, "class": word, "family": family, "text": text})
    elif with_colour():
        from rich.console import Console
        from rich.markdown import Markdown

        width = min(100, Console().width)
        console = Console(width=width, force_terminal=True, no_color=False, color_system="standard")
        console.print(Markdown(text))
    else:
        click.echo(text.rstrip("\n"))


def _pages() -> dict[str, Path]:
    """The pages that come with the package, by class."""
    return {page.stem: page for page in sorted(PAGES.glob("*.md")) if page.stem in FAMILY_OF}


def title(page: Path) -> str:
    """The first sentence under the first heading, on one line."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    texts = (text.strip() for text in paragraphs)
    plain = next((text for text in texts if text and not text.startswith("#")), "")
    plain = " ".join(line for line in plain.splitlines() if not line.startswith("#"))
    return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].replace("`", "")


def _list(pages: dict[str, Path], as_json: bool) -> None:
    if as_json:
        entries = [{"class": name, "family": FAMILY_OF[name]} for name in pages]
        errors = [{"code": code, "title": row.title} for code, row in CODES.items()]
        print_json({"schema": SCHEMA, "verdicts": entries, "errors": errors})
        return
    if not pages:
        raise UsageError("no verdict page came with this installation")
    for family, classes in CATALOGUE.items():
        known = [name for name in classes if name in pages]
        if known:
            click.echo(family)
        for name in known:
            click.echo(f"  {name:<32} {title(pages[name])}"[:100].rstrip())
    click.echo("errors of the command line")
    for code, row in CODES.items():
        click.echo(f"  {code:<32} {row.title}"[:100].rstrip())


def _unknown(code: str, word: str, pages: dict[str, Path]) -> UsageError:
    if word in FAMILY_OF:
        return UsageError(
            f"{word} is a verdict without a page yet", help="harness explain lists those with one"
        )
    near = closest(word, [*pages, *FAMILY_OF], likeness=0.5)
    meant = f"did you mean {near}? " if near else ""
    return UsageError(
        f"no verdict or error is called {code!r}", help=f"{meant}harness explain lists them all"
    )
