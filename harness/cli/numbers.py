"""Numbers on the command line: what they may be is said when they are not, and `N` in the help."""

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Whole = click.ParamType[int]
    _Number = click.ParamType[float]
else:  # click 8.2 knows no parameters of types
    _Whole = _Number = click.ParamType


class Whole(_Whole):
    """A whole number from `least` to `most`."""

    name = "n"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not _within(number, self.least, self.most):
            self.fail(
                f"{value!r} is not a whole number{_bounds(self.least, self.most)}", param, ctx
            )
        return number


class Number(_Number):
    """A number of at least `least`, or `above` one."""

    name = "n"

    def __init__(self, least: float | None = None, *, above: float | None = None) -> None:
        self.least, self.above = least, above

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if self.above is not None:
            words, fits = f" above {self.above:g}", number > self.above
        else:
            words, fits = _bounds(self.least, None), _within(number, self.least, None)
        if not fits or not math.isfinite(number):
            self.fail(f"{value!r} is not a number{words}", param, ctx)
        return number


def _within(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _bounds(least: float | None, most: float | None) -> str:
    if most is not None:
        return f" from {least or 0:g} to {most:g}"
    return "" if least is None else f" of at least {least:g}"
