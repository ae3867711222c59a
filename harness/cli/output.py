"""How the command line speaks: colours, notes beside the data, numbers while work takes long."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import click

Colour = Literal["auto", "always", "never"]
T = TypeVar("T")
_LONG_SECONDS = 1.0
_AGAIN_SECONDS = 0.2


class _Manner:
    """As the options before the command say."""

    colour: Colour = "auto"
    quiet = False


_manner = _Manner()


def set_manner(colour: Colour, *, quiet: bool, verbose: bool) -> None:
    """`quiet`: no notes and no numbers; `verbose`: what the parts of Harness log, too."""
    _manner.colour, _manner.quiet = colour, quiet
    if verbose:
        form = "%(asctime)s %(name)s: %(message)s"
        logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
        logging.getLogger("harness").setLevel(logging.DEBUG)


def with_colour() -> bool:
    """Whether stdout takes colour: as `--color` says, or a terminal that is not dumb, without
    NO_COLOR; FORCE_COLOR makes it take some wherever it leads."""
    if _manner.colour != "auto":
        return _manner.colour == "always"
    if os.environ.get("FORCE_COLOR") and not os.environ.get("NO_COLOR"):
        return True
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or "CI" in os.environ
    return sys.stdout.isatty() and not plain


def without_colour() -> bool:
    """Whether nobody wants any, whatever the terminal can do."""
    return _manner.colour == "never"


def note(text: str) -> None:
    """A message for the reader, beside the data."""
    if not _manner.quiet:
        click.echo(f"note: {text}", err=True)


def counted(items: Iterable[T], what: str) -> Iterator[T]:
    """`items`, with their number on stderr while they take long and somebody sits there."""
    shown, due, number = False, time.monotonic() + _LONG_SECONDS, 0
    able = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "CI" not in os.environ
    watched = able and not _manner.quiet
    for number, item in enumerate(items, start=1):
        if watched and number % 256 == 0 and time.monotonic() > due:
            print(f"\r{what}: {number:,}", end="", file=sys.stderr, flush=True)
            shown, due = True, time.monotonic() + _AGAIN_SECONDS
        yield item
    if shown:
        print(f"\r{'':{len(what) + 20}}\r", end="", file=sys.stderr, flush=True)
