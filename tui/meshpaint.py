"""The mesh as lines of inked text: cards, cells of a rank, cells of many ranks. Pure."""

from collections.abc import Set
from dataclasses import dataclass

from rich.cells import cell_len

from harness.tui.cells import CULPRITS, SEVERITY, Cell, glyph_of
from harness.tui.grid import CARD_HEIGHT, Grid
from harness.tui.paint import Line, fit
from harness.tui.theme import INK_OF_STATE, Ink
from harness.tui.view import View
from harness.tui.wording import loss_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What one refresh of the mesh shows. `cursor` is a position among the cells; `hidden` holds
    those that the filter leaves out."""

    view: View
    grid: Grid
    cursor: int
    hidden: Set[int] = frozenset()
    ascii_only: bool = False

    def worst(self, slot: int) -> tuple[Cell | None, int]:
        """The cell to show for `slot`, None when the filter leaves all out, and how many of its
        cells are in that state; 0 when all of them are."""
        members = self.grid.slots[slot]
        cells = self.view.cells
        if len(members) == 1:
            return (None if members[0] in self.hidden else cells[members[0]]), 0
        shown = [cells[index] for index in members if index not in self.hidden]
        if not shown:
            return None, 0
        worst = min(shown, key=lambda cell: SEVERITY[cell.state])
        count = sum(1 for cell in shown if cell.state == worst.state)
        return worst, 0 if count == len(shown) else count


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
    row = grid.rows[y]
    shown = [[mesh.worst(slot) for slot in group] for group in row]
    bad = any(cell is not None and cell.state in CULPRITS for group in shown for cell, _ in group)
    here = any(mesh.cursor in grid.slots[slot] for group in row for slot in group)
    ink: Ink = "bad" if bad else "cursor" if here else "dim"
    line: list[tuple[str, Ink]] = [(f"{grid.labels[y]:>{grid.label_width}}  ", ink)]
    # Neighbours in one ink are one piece: fewer pieces are less work and fewer bytes to send.
    run, run_ink = "", ink
    for group, cells in zip(row, shown, strict=True):
        for slot, (cell, count) in zip(group, cells, strict=True):
            glyph, glyph_ink = _cell(cell, mesh.ascii_only)
            marked = here and mesh.cursor in grid.slots[slot]
            if marked and grid.width == 1:
                glyph_ink = "cell_cursor"
            if glyph_ink != run_ink:
                line.append((run, run_ink))
                run, run_ink = "", glyph_ink
            run += glyph
            if grid.width == 1:
                continue
            if marked or count or (cell is not None and cell.state in CULPRITS):
                beside = "<" if marked else _few(count)
                line += [(run, run_ink), (beside, "cursor" if marked else "head")]
                run = ""
            else:
                run += " "
        run, run_ink = _gap(line, run, run_ink)
    line.append((run, run_ink))
    return tuple(piece for piece in line if piece[0])


def _cell(cell: Cell | None, ascii_only: bool) -> tuple[str, Ink]:
    if cell is None:
        return " ", "text"
    return glyph_of(cell.state, ascii_only), INK_OF_STATE[cell.state]


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


def bad_lines(mesh: Mesh, width: int, most: int) -> list[Line]:
    """For small screens: at most `most` troubled ranks, one a line, worst first; else the first
    ranks."""
    cells = [cell for at, cell in enumerate(mesh.view.cells) if at not in mesh.hidden]
    chosen = [cell for cell in cells if cell.state in CULPRITS]
    chosen += [cell for cell in cells if cell.state in ("slow", "stale")]
    return [_rank_line(mesh, cell, width) for cell in (chosen or cells)[:most]]


def _rank_line(mesh: Mesh, cell: Cell, width: int) -> Line:
    view = mesh.view
    mark = ">" if view.cells[mesh.cursor].rank == cell.rank else " "
    text = f" rank {cell.rank}  {view.place(cell)}  step {cell.step}  {cell.state}"
    return (
        (mark, "cursor"),
        (f" {glyph_of(cell.state, mesh.ascii_only)} ", INK_OF_STATE[cell.state]),
        (fit(text, width - 4, mesh.ascii_only), "text"),
    )
