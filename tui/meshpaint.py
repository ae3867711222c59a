"""The mesh as lines of inked text: cards, cells of a rank, cells of many ranks. Pure."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len

from harness.tui.cells import CULPRITS, GLYPHS, SEVERITY, TROUBLED, Cell, CellState, glyph_of
from harness.tui.grid import CARD_HEIGHT, Grid
from harness.tui.paint import Line, fit
from harness.tui.theme import INK_OF_STATE, Ink
from harness.tui.view import View
from harness.tui.wording import loss_text

Shown = tuple[CellState | None, int]
"""The worst state of a slot, None when the filter leaves all of it out, and how many of its cells
are in it; 0 when all of them are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What one refresh of the mesh shows. `cursor` is a position among the cells; `hidden` holds
    those that the filter leaves out."""

    view: View
    grid: Grid
    cursor: int
    hidden: Set[int] = frozenset()
    ascii_only: bool = False

    def worst(self, slot: int) -> Shown:
        """What is shown for `slot`."""
        members = self.grid.slots[slot]
        cells = self.view.cells
        if len(members) == 1:
            return (None if members[0] in self.hidden else cells[members[0]].state), 0
        states = [cells[index].state for index in members if index not in self.hidden]
        if not states:
            return None, 0
        worst = min(states, key=SEVERITY.__getitem__)
        count = states.count(worst)
        return worst, 0 if count == len(states) else count


def mesh_size(grid: Grid) -> tuple[int, int]:
    """Columns and lines that the whole mesh takes."""
    columns = max((sum(len(group) for group in row) for row in grid.rows), default=0)
    if grid.cards:
        return columns * grid.width, len(grid.rows) * CARD_HEIGHT
    groups = max((len(row) for row in grid.rows), default=0)
    head = 1 if grid.heads else 0
    return grid.label_width + 2 + columns * grid.width + groups * 2, len(grid.rows) + head


def mesh_line(mesh: Mesh, y: int) -> Line:
    """Line `y` of the mesh."""
    grid = mesh.grid
    if grid.cards:
        return _card_line(mesh, y)
    if grid.heads:
        if y == 0:
            return _head_line(grid)
        y -= 1
    slots, cells, row = grid.slots, mesh.view.cells, grid.rows[y]
    if mesh.hidden or grid.zoom == "groups":
        groups = tuple([tuple([mesh.worst(slot) for slot in group]) for group in row])
    else:
        groups = tuple([tuple([(cells[slots[at][0]].state, 0) for at in group]) for group in row])
    at, column = grid.place(mesh.cursor)
    marked = column if at == y else -1
    label = f"{grid.labels[y]:>{grid.label_width}}  "
    return _row_line(label, groups, marked, grid.width == 1, mesh.ascii_only)


@lru_cache(maxsize=512)
def _row_line(
    label: str, groups: tuple[tuple[Shown, ...], ...], marked: int, narrow: bool, ascii_only: bool
) -> Line:
    """A row of cells, of which number `marked` has the cursor (-1: none). Kept, because most rows
    of a run are what they were a moment ago."""
    bad = any(state in CULPRITS for group in groups for state, _ in group)
    ink: Ink = "bad" if bad else "cursor" if marked >= 0 else "dim"
    line: list[tuple[str, Ink]] = [(label, ink)]
    looks = _LOOKS[ascii_only]
    # Neighbours in one ink are one piece: fewer pieces are less work and fewer bytes to send.
    run, run_ink = "", ink
    x = -1
    for group in groups:
        for state, count in group:
            x += 1
            glyph, glyph_ink = looks[state]
            if x == marked and narrow:
                glyph_ink = "cell_cursor"
            if glyph_ink != run_ink:
                line.append((run, run_ink))
                run, run_ink = "", glyph_ink
            run += glyph
            if narrow:
                continue
            if x == marked or count or state in CULPRITS:
                beside = "<" if x == marked else _few(count)
                line += [(run, run_ink), (beside, "cursor" if x == marked else "head")]
                run = ""
            else:
                run += " "
        run, run_ink = _gap(line, run, run_ink)
    line.append((run, run_ink))
    return tuple([piece for piece in line if piece[0]])


def _looks(ascii_only: bool) -> Mapping[CellState | None, tuple[str, Ink]]:
    looks: dict[CellState | None, tuple[str, Ink]] = {None: (" ", "text")}
    for state in GLYPHS:
        looks[state] = glyph_of(state, ascii_only), INK_OF_STATE[state]
    return looks


_LOOKS = {ascii_only: _looks(ascii_only) for ascii_only in (False, True)}


def _few(count: int) -> str:
    return " " if not count else str(count) if count < 10 else "+"


def _gap(line: list[tuple[str, Ink]], run: str, ink: Ink) -> tuple[str, Ink]:
    """The room between two groups, in an ink without a background."""
    if ink.endswith("_badge") or ink == "cell_cursor":
        line.append((run, ink))
        return "  ", "text"
    return run + "  ", ink


def _head_line(grid: Grid) -> Line:
    inner = len(grid.rows[0][0]) * grid.width
    heads = "".join(f"{fit(head, inner):<{inner}}  " for head in grid.heads)
    return ((" " * (grid.label_width + 2) + heads, "dim"),)


def _card_line(mesh: Mesh, y: int) -> Line:
    row, part = divmod(y, CARD_HEIGHT)
    line: list[tuple[str, Ink]] = []
    for index in (i for group in mesh.grid.rows[row] for i in group):
        cell = mesh.view.cells[index]
        place = mesh.view.place(cell)
        width, marked = mesh.grid.width - 1, index == mesh.cursor
        if index in mesh.hidden:
            line.append((" " * width if part else f"   {cell.rank}".ljust(width), "frame"))
        else:
            line += _card(cell, place, width, part, marked, mesh.ascii_only)
        line.append((" ", "text"))
    return tuple(line)


def _card(
    cell: Cell, place: str, width: int, part: int, marked: bool, ascii_only: bool
) -> list[tuple[str, Ink]]:
    """One line of the card of a rank; its four lines are title, state, figures, bottom."""
    tl, top, tr, side, bl, br = "+-+|++" if ascii_only else "╭─╮│╰╯"
    if marked:
        tl, top, tr, side, bl, br = "#=#|##" if ascii_only else "┏━┓┃┗┛"
    frame: Ink = "cursor" if marked else "frame_bad" if cell.state in CULPRITS else "frame"
    inner = width - 2
    if part == 0:
        rank = f" {cell.rank} "
        place = fit(f"{place} " if place else "", inner - len(rank) - 1)
        rest = top * (inner - 1 - len(rank) - cell_len(place))
        return [
            (tl + top, frame),
            (rank, "title"),
            (place, "head"),
            (rest + tr, frame),
        ]
    if part == 3:
        return [(bl + top * inner + br, frame)]
    if part == 1:
        glyph = glyph_of(cell.state, ascii_only)
        word = cell.state.replace("_", " ")
        telling = cell.state in ("running", "waiting", "slow", "stale")
        phase = cell.phase if telling and cell.phase != "step" else ""
        room = inner - 4 - len(word)
        body = fit(f" {phase}" if room > len(phase) else "", room)
        badge: tuple[str, Ink] = (f" {glyph} ", INK_OF_STATE[cell.state])
        word_ink = INK_OF_STATE[cell.state]
        if word_ink.endswith("_badge"):
            word_ink = "bad" if word_ink == "bad_badge" else "corrupt"
        pad = " " * (inner - 4 - len(word) - cell_len(body))
        return [(side, frame), badge, (f" {word}", word_ink), (body + pad, "dim"), (side, frame)]
    step = f" step {cell.step}"
    loss = loss_text(cell.loss, cell.loss_finite)
    gap = inner - len(step) - len(loss) - 1
    if gap < 1:
        loss, gap = "", inner - len(step) - 1
    loss_ink: Ink = "text" if cell.loss_finite else "bad"
    return [
        (side, frame),
        (step + " " * gap, "text"),
        (loss + " ", loss_ink),
        (side, frame),
    ]


def bad_lines(mesh: Mesh, width: int, most: int) -> tuple[list[Line], bool]:
    """For small screens: at most `most` troubled ranks, one a line, worst first; else the first
    ranks. And whether they are troubled."""
    cells: Sequence[Cell] = mesh.view.cells
    if mesh.hidden:
        cells = [cell for at, cell in enumerate(cells) if at not in mesh.hidden]
    troubled = [cell for cell in cells if cell.state in TROUBLED]
    troubled.sort(key=lambda cell: cell.state not in CULPRITS)
    lines = [_rank_line(mesh, cell, width) for cell in (troubled or cells)[:most]]
    return lines, bool(troubled)


def _rank_line(mesh: Mesh, cell: Cell, width: int) -> Line:
    view = mesh.view
    mark = ">" if view.cells[mesh.cursor].rank == cell.rank else " "
    text = f" rank {cell.rank}  {view.place(cell)}  step {cell.step}  {cell.state}"
    return (
        (mark, "cursor"),
        (f" {glyph_of(cell.state, mesh.ascii_only)} ", INK_OF_STATE[cell.state]),
        (fit(text, width - 4, mesh.ascii_only), "text"),
    )
