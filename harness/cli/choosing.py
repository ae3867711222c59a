"""`--where`: ranks chosen in the words of the screens' filter, for the commands that show ranks."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from harness.errors import FilterError
from harness.state import RunState
from harness.tui.view import build
from harness.tui.where import parse

F = TypeVar("F", bound=Callable[..., Any])


def where_option(function: F) -> F:
    """`--where TERMS`, see docs/tui.md."""
    words = "Only ranks such as 'dp=3 state=hung !tp=0'."
    return click.option("--where", metavar="TERMS", help=words)(function)


def ranks_where(state: RunState, text: str | None) -> frozenset[int] | None:
    """The ranks of `state` that `text` chooses; None when all are, without one.

    Raises UsageError when it is not understood, is about lines of logs, or chooses none.
    """
    if text is None:
        return None
    view = build(state, time.time_ns())
    where = parse(text, tuple(name for name, _ in view.axes))
    if not where.about_ranks or any(term.pattern is not None for term in where.terms):
        raise FilterError(
            f"--where {text}: terms such as dp=3 are wanted",
            help="for example rank=0-3; words in logs are found with harness logs --grep",
        )
    chosen = frozenset(
        cell.rank for cell in view.cells if where.cell(cell, view.coordinates.get(cell.rank, {}))
    )
    if not chosen:
        raise FilterError(f"--where {text}: no rank is there", help="harness status shows all")
    return chosen
