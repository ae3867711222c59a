"""From a view to lines of inked text. Pure: no terminal, no Textual; one function per area.

A line is a tuple of (text, ink). Lines may be wider than the area, the widget crops them.
"""

from collections.abc import Sequence
from datetime import datetime, tzinfo

from rich.cells import cell_len, set_cell_size

from harness.ranklogs import LogLine
from harness.topology import ranks_text
from harness.tui.cells import CULPRITS, GLYPHS, MEANINGS, Cell
from harness.tui.detail import DetailLine
from harness.tui.grid import CARD_HEIGHT, Grid
from harness.tui.theme import INK_OF_STATE, INK_OF_TONE, Ink
from harness.tui.view import IncidentRow, View
from harness.tui.wording import clean, duration_text, loss_text

Line = tuple[tuple[str, Ink], ...]

QUIET_SECONDS = 3.0
"""A live run from which nothing has come for this long is not called live."""
BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=*#%@"


def fit(text: str, width: int, ascii_only: bool = False) -> str:
    """`text` in at most `width` columns; a cut is marked."""
    if cell_len(text) <= width:
        return text
    mark = "~" if ascii_only else "…"
    return set_cell_size(text, max(0, width - 1)).rstrip() + (mark if width > 0 else "")


def header_line(view: View, width: int, feed: str) -> Line:
    """Name, size, step, loss, attempt, checkpoint, time and `feed` (LIVE, ENDED, ...).

    When not all fits, the most needed parts stay.
    """
    h = view.header
    if feed == "LIVE" and h.quiet > QUIET_SECONDS:
        feed = f"QUIET {h.quiet:.0f} s"
    step = f"step {h.step}" + (f"/{h.total_steps}" if h.total_steps else "")
    parts: list[tuple[int, str, Ink]] = [
        (0, h.run or "harness", "title"),
        (6, f"{h.world_size} ranks" if h.world_size else "", "dim"),
        (5, h.mesh, "dim"),
        (1, step if view.cells else "", "text"),
        (3, f"loss {loss_text(h.loss)}" if h.loss is not None else "", "text"),
        (4, f"attempt {h.attempt}" if h.attempt is not None else "", "text"),
        (7, f"ckpt {h.checkpoint_step}" if h.checkpoint_step is not None else "", "dim"),
        (8, f"ETTR {h.ettr:.0%}" if h.ettr is not None else "", "dim"),
        (2, duration_text(h.elapsed), "text"),
        (1, feed, "key"),
    ]
    room = width - 1
    chosen = set()
    for need, text, _ in sorted(part for part in parts if part[1]):
        if cell_len(text) + 2 <= room or need == 0:
            room -= cell_len(text) + 2
            chosen.add(text)
    line: list[tuple[str, Ink]] = [(" ", "text")]
    for _, text, ink in parts:
        if text in chosen:
            line += [(text, ink), ("  ", "text")]
    return tuple(line)


def banner_lines(view: View, width: int, ascii_only: bool = False) -> tuple[Line, Line]:
    """The two lines of the banner; the first word carries the tone."""
    first, second = view.banner.lines
    word, _, rest = first.partition("  ")
    ink = INK_OF_TONE[view.banner.tone]
    room = width - len(word) - 4
    body: Ink = "title" if view.banner.tone == "bad" else "text"
    return (
        ((" ", "text"), (f" {word} ", ink), (" " + fit(rest, room, ascii_only), body)),
        ((" " + fit(second, width - 2, ascii_only), "text" if second else "dim"),),
    )


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """The last `width` values as bars between their lowest and highest."""
    values = list(values)[-width:]
    if len(values) < 2:
        return ""
    bars = ASCII_BARS if ascii_only else BARS
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    top = len(bars) - 1
    return "".join(bars[round((value - low) / span * top)] for value in values)


def status_line(
    view: View, cursor: int, losses: Sequence[float], width: int, ascii_only: bool = False
) -> Line:
    """The rank under the cursor in words, and how the loss has gone."""
    cell = view.cells[cursor] if cursor < len(view.cells) else None
    line: list[tuple[str, Ink]] = [(" ", "text")]
    if cell is not None:
        place = f" {view.place(cell)}" if cell.rank in view.coordinates else ""
        line.append((f"rank {cell.rank}/{len(view.cells)}{place} node{cell.node_rank}", "title"))
        word = cell.state.replace("_", " ")
        line += [(" ", "text"), (f" {word} ", INK_OF_STATE[cell.state])]
        line.append((f" step {cell.step}  phase {cell.phase}", "text"))
    used = sum(cell_len(text) for text, _ in line)
    bars = sparkline(losses, min(40, width - used - 12), ascii_only) if width - used > 20 else ""
    if bars:
        line += [("  loss ", "dim"), (bars, "running")]
    return tuple(line)


def mesh_size(grid: Grid) -> tuple[int, int]:
    """Columns and lines that the whole mesh takes."""
    columns = max((sum(len(group) for group in row) for row in grid.rows), default=0)
    if grid.cards:
        return columns * grid.width, len(grid.rows) * CARD_HEIGHT
    groups = max((len(row) for row in grid.rows), default=0)
    head = 1 if grid.heads else 0
    return grid.label_width + 2 + columns * 2 + groups * 2, len(grid.rows) + head


def mesh_line(view: View, grid: Grid, y: int, cursor: int, ascii_only: bool = False) -> Line:
    """Line `y` of the mesh."""
    if grid.cards:
        return _card_line(view, grid, y, cursor, ascii_only)
    if grid.heads:
        if y == 0:
            return _head_line(grid)
        y -= 1
    row = grid.rows[y]
    bad = any(view.cells[index].state in CULPRITS for group in row for index in group)
    here = any(cursor in group for group in row)
    ink: Ink = "bad" if bad else "cursor" if here else "dim"
    line: list[tuple[str, Ink]] = [(f"{grid.labels[y]:>{grid.label_width}}  ", ink)]
    # Neighbours in one ink are one piece: fewer pieces are less work and fewer bytes to send.
    run, run_ink = "", ink
    for group in row:
        for index in group:
            state = view.cells[index].state
            if INK_OF_STATE[state] != run_ink:
                line.append((run, run_ink))
                run, run_ink = "", INK_OF_STATE[state]
            run += _glyph(state, ascii_only)
            if index == cursor or state in CULPRITS:
                line += [(run, run_ink), ("<" if index == cursor else " ", "cursor")]
                run = ""
            else:
                run += " "
        run, run_ink = _gap(line, run, run_ink)
    line.append((run, run_ink))
    return tuple(piece for piece in line if piece[0])


def _gap(line: list[tuple[str, Ink]], run: str, ink: Ink) -> tuple[str, Ink]:
    """The room between two groups, in an ink without a background."""
    if ink.endswith("_badge"):
        line.append((run, ink))
        return "  ", "text"
    return run + "  ", ink


def _glyph(state: str, ascii_only: bool) -> str:
    if not ascii_only and state == "running":
        return "·"
    return GLYPHS[state]  # type: ignore[index]


def _head_line(grid: Grid) -> Line:
    inner = len(grid.rows[0][0]) * 2
    heads = "".join(f"{fit(head, inner):<{inner}}  " for head in grid.heads)
    return ((" " * (grid.label_width + 2) + heads, "dim"),)


def _card_line(view: View, grid: Grid, y: int, cursor: int, ascii_only: bool) -> Line:
    row, part = divmod(y, CARD_HEIGHT)
    line: list[tuple[str, Ink]] = []
    for index in (i for group in grid.rows[row] for i in group):
        cell = view.cells[index]
        place = view.place(cell)
        line += _card(cell, place, grid.width - 1, part, index == cursor, ascii_only)
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
        glyph = _glyph(cell.state, ascii_only)
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


def bad_lines(view: View, cursor: int, width: int, ascii_only: bool = False) -> list[Line]:
    """For small screens: the troubled ranks, one a line, worst first; else the first ranks."""
    cells = [cell for cell in view.cells if cell.state in CULPRITS]
    cells += [cell for cell in view.cells if cell.state in ("slow", "stale")]
    chosen = cells or list(view.cells)
    return [_rank_line(view, cell, cursor, width, ascii_only) for cell in chosen]


def _rank_line(view: View, cell: Cell, cursor: int, width: int, ascii_only: bool) -> Line:
    mark = ">" if view.cells[cursor].rank == cell.rank else " "
    glyph = _glyph(cell.state, ascii_only)
    text = f" rank {cell.rank}  {view.place(cell)}  step {cell.step}  {cell.state}"
    return (
        (mark, "cursor"),
        (f" {glyph} ", INK_OF_STATE[cell.state]),
        (fit(text, width - 4, ascii_only), "text"),
    )


def incident_lines(
    rows: Sequence[IncidentRow], width: int, zone: tzinfo | None, ascii_only: bool = False
) -> list[Line]:
    """Newest first, two lines each: when and what, then the cause and how it went."""
    if not rows:
        return [((" no incident so far", "dim"),)]
    lines: list[Line] = []
    for row in reversed(rows):
        clock = datetime.fromtimestamp(row.detected_ns / 1e9, zone).strftime("%H:%M:%S")
        ink: Ink = "bad" if row.outcome in ("open", "failed") else "warn"
        if row.outcome == "recovered":
            ink = "good"
        head = f" {row.verdict} of {row.who}"
        lines.append(
            (
                (f" {clock}", "dim"),
                (fit(head, width - 10, ascii_only), ink),
            )
        )
        lines.append(((fit(f"   {row.fate}; {row.cause}", width - 1, ascii_only), "text"),))
    return lines


def incident_page(
    rows: Sequence[IncidentRow], width: int, zone: tzinfo | None, ascii_only: bool = False
) -> list[Line]:
    """Newest first, all that the verdict says."""
    lines: list[Line] = [rule(f"incidents ({len(rows)})", width, ascii_only)]
    if not rows:
        return lines + incident_lines(rows, width, zone, ascii_only)
    for row in reversed(rows):
        lines.append(incident_lines([row], width, zone, ascii_only)[0])
        facts = [
            ("cause", row.cause),
            ("where", row.where),
            ("why", f"{row.reason} ({row.confidence})"),
            ("victims", f"ranks {ranks_text(row.victims)}" if row.victims else ""),
            ("when", f"attempt {row.attempt}, step {row.step}"),
            ("action", f"{row.action}: {row.action_reason}"),
            ("outcome", row.fate),
        ]
        for name, text in facts:
            if text:
                body = fit(text, width - 14, ascii_only)
                lines.append(((f"   {name:<9}", "head"), (body, "text")))
        lines.append(())
    return lines


def log_line(line: LogLine, width: int, ascii_only: bool = False) -> Line:
    """`[r0-3] text`, cut to `width`."""
    prefix = f" [r{ranks_text(line.ranks)}] "
    return ((prefix, "dim"), (fit(clean(line.text), width - len(prefix) - 1, ascii_only), "text"))


def detail_lines(lines: Sequence[DetailLine]) -> list[Line]:
    inks: dict[str, Ink] = {
        "title": "title",
        "head": "head",
        "text": "text",
        "dim": "dim",
        "bad": "bad",
    }
    return [((f" {line.text}", inks[line.weight]),) for line in lines]


def legend_lines(ascii_only: bool = False) -> list[Line]:
    """Every glyph with its meaning, for the help screen."""
    return [
        (
            ("  ", "text"),
            (f" {_glyph(state, ascii_only)} ", INK_OF_STATE[state]),
            (f"  {MEANINGS[state]}", "text"),
        )
        for state in GLYPHS
    ]


def rule(title: str, width: int, ascii_only: bool = False) -> Line:
    """A heading line of a panel."""
    dash = "-" if ascii_only else "─"
    return ((f"{dash}{dash} ", "frame"), (title, "head"), (" " + dash * width, "frame"))
