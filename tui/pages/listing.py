"""What the screens made of rows share: a head that stays, rows to choose from, details of a row."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

from harness.tui.model import Model
from harness.tui.paint import Line
from harness.tui.view import View
from harness.tui.where import Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One thing that can be chosen of a kind of fault."""

    name: str
    default: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault in words, as `harness chaos explain` has it."""

    name: str
    area: str
    summary: str
    said: str
    on_node: bool
    needs: str
    note: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that a screen is made from. `width` and `height` are the room there is."""

    model: Model
    view: View
    now_ns: int
    width: int
    height: int
    where: Where = field(default_factory=Where)
    rank: int = 0
    """Under the cursor of the mesh."""
    selected: Hashable = None
    """Key of the row that is chosen on this screen; None: the first."""
    zone: tzinfo | None = None
    ascii_only: bool = False
    kinds: Sequence[FaultKind] = ()
    deeds: bool = True
    """Whether the run can be changed from here."""
    flops_per_token: float = 0.0
    peak_tflops: float = 0.0
    """Of one device; 0: not told, so there is no MFU."""

    def clock(self, at_ns: int) -> str:
        """Time of day of a wall clock in nanoseconds."""
        return datetime.fromtimestamp(at_ns / 1e9, self.zone).strftime("%H:%M:%S")

    def chosen(self) -> frozenset[int] | None:
        """The ranks that the filter chooses; None: all."""
        if not self.where.about_ranks:
            return None
        places = self.view.coordinates
        none: Mapping[str, int] = {}
        return frozenset(
            cell.rank
            for cell in self.view.cells
            if self.where.cell(cell, places.get(cell.rank, none))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to choose. `key` stays the same while it is the same thing."""

    key: Hashable
    lines: tuple[Line, ...]
    rank: int | None = None
    """The rank to go to from here."""
    detail: Callable[[], list[Line]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A screen: `head` stays above, of the rows one is chosen."""

    head: tuple[Line, ...] = ()
    rows: tuple[Row, ...] = ()

    def lines(self, chosen: int, ascii_only: bool = False) -> list[Line]:
        """All lines, with a mark before the row number `chosen`."""
        lines = list(self.head)
        for at, row in enumerate(self.rows):
            first, *rest = row.lines
            mark = ">" if at == chosen else " "
            lines.append(((mark, "cursor"), *first))
            lines += [((" ", "text"), *line) for line in rest]
        return lines

    def place(self, chosen: int) -> tuple[int, int]:
        """First line and number of lines of a row."""
        before = len(self.head) + sum(len(row.lines) for row in self.rows[:chosen])
        return before, len(self.rows[chosen].lines) if chosen < len(self.rows) else 1

    def position(self, key: Hashable) -> int:
        """Number of the row with `key`; the first one when it is gone."""
        return next((at for at, row in enumerate(self.rows) if row.key == key), 0)

    def row_at(self, line: int) -> int | None:
        """Number of the row that line `line` belongs to."""
        at = len(self.head)
        for number, row in enumerate(self.rows):
            if at <= line < at + len(row.lines):
                return number
            at += len(row.lines)
        return None
