"""From a view to lines of inked text. Pure: no terminal, no Textual; one function per area.

A line is a tuple of (text, ink). Lines may be wider than the area, the widget crops them.
"""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from harness.ranklogs import LogLine
from harness.topology import ranks_text
from harness.tui.cells import GLYPHS, MEANINGS, glyph_of
from harness.tui.detail import DetailLine
from harness.tui.history import Point, thinned
from harness.tui.theme import INK_OF_STATE, INK_OF_TONE, Ink
from harness.tui.view import View
from harness.tui.wording import clean, duration_text, loss_text

Line = tuple[tuple[str, Ink], ...]

QUIET_SECONDS = 3.0
_LONG_SECONDS = 100.0
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
        long = h.quiet >= _LONG_SECONDS
        feed = f"QUIET {duration_text(h.quiet) if long else f'{h.quiet:.0f} s'}"
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
    view: View, cursor: int, losses: Sequence[Point], width: int, ascii_only: bool = False
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
    room = min(40, width - used - 12)
    values: Sequence[float | None] = [point.value for point in losses]
    if len(values) > room:
        values = thinned(losses, room)
    known = [value for value in values if value is not None]
    bars = sparkline(known, room, ascii_only) if width - used > 20 else ""
    if bars:
        line += [("  loss ", "dim"), (bars, "running")]
    return tuple(line)


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
            (f" {glyph_of(state, ascii_only)} ", INK_OF_STATE[state]),
            (f"  {MEANINGS[state]}", "text"),
        )
        for state in GLYPHS
    ]


def rule(title: str, width: int, ascii_only: bool = False) -> Line:
    """A heading line of a panel."""
    dash = "-" if ascii_only else "─"
    return ((f"{dash}{dash} ", "frame"), (title, "head"), (" " + dash * width, "frame"))
