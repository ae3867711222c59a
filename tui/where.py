"""Which ranks, in a few words: the grammar of `/` on the screens and of `--where` in commands.

    dp=3 pp=0-1          on these coordinates (`dp` also means all axes that begin with `dp_`)
    rank=0-63,517        these ranks
    node=64  local=0     on that node; that local rank
    state=hung,slow      in one of these states
    step=<200            so far: < <= > >= and plain numbers
    phase=checkpoint     in that phase
    !tp=0                not there
    loss                 lines of the log that say it (a regular expression)

All terms must hold.
"""

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.errors import FilterError
from harness.tui.cells import GLYPHS, Cell

_TERM = re.compile(r"(!?)([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_ORDER = re.compile(r"(<=|>=|<|>)(\d{1,12})")
_ORDERS: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBERS = ("rank", "node", "local", "step")
WORDS = ("state", "phase")

Test = Callable[[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One thing that must hold: a number or a word of the rank, or a text of its log lines."""

    name: str
    negated: bool
    number: Test | None = None
    words: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None

    def holds(self, cell: Cell, place: Mapping[str, int]) -> bool:
        if self.pattern is not None:
            return True
        if self.number is None:
            found = (cell.state if self.name == "state" else cell.phase) in self.words
        else:
            value = {
                "rank": cell.rank,
                "node": cell.node_rank,
                "local": cell.local_rank,
                "step": cell.step,
            }.get(self.name)
            values = [value] if value is not None else _on_axis(self.name, place)
            found = any(self.number(each) for each in values)
        return found != self.negated


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What was typed, understood. An empty one holds for all."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    @property
    def about_ranks(self) -> bool:
        """Whether it chooses ranks, not only lines of logs."""
        return any(term.pattern is None for term in self.terms)

    def cell(self, cell: Cell, place: Mapping[str, int]) -> bool:
        return all(term.holds(cell, place) for term in self.terms)

    def line(self, text: str) -> bool:
        """Whether a log line says what it must."""
        return all(
            (term.pattern.search(text) is not None) != term.negated
            for term in self.terms
            if term.pattern is not None
        )


def _on_axis(name: str, place: Mapping[str, int]) -> list[int]:
    if name in place:
        return [place[name]]
    return [value for axis, value in place.items() if axis.startswith(f"{name}_")]


@lru_cache(maxsize=32)
def parse(text: str, axes: tuple[str, ...] = ()) -> Where:
    """`text` as a filter; `axes` names those of the mesh, for better answers.

    Raises UsageError in one line, with the nearest name.
    """
    return Where(text=" ".join(text.split()), terms=tuple(_terms(text.split(), axes)))


def _terms(words: Sequence[str], axes: Sequence[str]) -> Iterable[Term]:
    for word in words:
        match = _TERM.fullmatch(word)
        if match is None:
            yield _text_term(word)
            continue
        negated, name, values = match[1] == "!", match[2], match[3]
        if name in WORDS:
            yield Term(name=name, negated=negated, words=_words(name, values))
        else:
            _check_name(name, axes)
            yield Term(name=name, negated=negated, number=_number(name, values))


def _text_term(word: str) -> Term:
    negated = word.startswith("!")
    try:
        return Term(name="text", negated=negated, pattern=re.compile(word[negated:]))
    except re.error as error:
        raise FilterError(f"{word}: not a regular expression: {error}") from None


def _check_name(name: str, axes: Sequence[str]) -> None:
    if name in NUMBERS or not axes:
        return
    if name in axes or any(axis.startswith(f"{name}_") for axis in axes):
        return
    known = [*axes, *NUMBERS, *WORDS]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise FilterError(
        f"{name}=: no such axis or name",
        help=(f"did you mean {near[0]}? " if near else "") + f"there are {', '.join(known)}",
    )


def _words(name: str, values: str) -> frozenset[str]:
    chosen = frozenset(filter(None, values.split(",")))
    if not chosen:
        raise FilterError(f"{name}=: nothing after it", help=f"for example {name}={_example(name)}")
    for word in chosen if name == "state" else ():
        if word not in GLYPHS:
            near = difflib.get_close_matches(word, list(GLYPHS), n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}? " if near else ""
            raise FilterError(f"state={word}: no such state", help=meant + "there are " + _states())
    return chosen


def _states() -> str:
    return ", ".join(GLYPHS)


def _example(name: str) -> str:
    return {"state": "hung,slow", "phase": "checkpoint"}.get(name, "0-3,7")


def _number(name: str, values: str) -> Test:
    tests: list[Test] = []
    for part in values.split(","):
        order, span = _ORDER.fullmatch(part), _RANGE.fullmatch(part)
        if order is not None:
            tests.append(_ordered(order[1], int(order[2])))
        elif span is not None and int(span[2] or span[1]) >= int(span[1]):
            tests.append(_within(int(span[1]), int(span[2] or span[1])))
        else:
            raise FilterError(
                f"{name}={values}: {part!r} is not a number or a range",
                help=f"for example {name}={_example(name)}",
            )
    return lambda value: any(test(value) for test in tests)


def _ordered(sign: str, bound: int) -> Test:
    compare = _ORDERS[sign]
    return lambda value: compare(value, bound)


def _within(low: int, high: int) -> Test:
    return lambda value: low <= value <= high
