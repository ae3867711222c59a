"""The one widget all areas are made of: painted lines, of which only changed ones are sent.

One widget with `render_line` instead of one per rank: with a thousand ranks it costs 65 to 90
times less (measured), and the cost follows the window, not the world.
"""

from collections.abc import Callable

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from harness.tui.paint import Line
from harness.tui.theme import INKS

STYLES: dict[str, Style] = {ink: Style.parse(text) for ink, text in INKS.items()}


class LinesView(ScrollView, can_focus=False):
    """Shows `count` lines that `line_at` paints when they are in sight."""

    DEFAULT_CSS = """
    LinesView { scrollbar-size: 1 1; }
    """

    class Clicked(Message):
        """A click at column `x`, line `y` of the content."""

        def __init__(self, area: "LinesView", x: int, y: int) -> None:
            super().__init__()
            self.area = area
            self.x = x
            self.y = y

    def __init__(self, *, id: str, follow: bool = False) -> None:
        super().__init__(id=id)
        self.follow = follow
        """Stay at the end when lines are added, unless the reader has scrolled away."""
        self._at_end = True
        self._line_at: Callable[[int], Line] = lambda _: ()
        self._count = 0
        self._shown: dict[int, tuple[Line, Strip]] = {}
        """Lines that were drawn, by their number, each with what it was drawn as."""
        self._drawn_for = (0, 0)
        """For which first column and which width."""
        self._painted: dict[int, Line] = {}
        """Lines of the present content that were painted already."""
        self._base = Style.null()
        self._inked: dict[str, Style] = {}
        """By ink, on the widget's own background; empty: not known yet."""

    def show(self, count: int, width: int, line_at: Callable[[int], Line]) -> None:
        """Take new content and redraw the lines in sight that differ."""
        self._line_at = line_at
        self._count = count
        self._painted.clear()
        size = Size(width, count)
        if size != self.virtual_size:
            self.virtual_size = size
            self._keep_at_end()
        top = self.scroll_offset.y
        first = None  # neighbours go together: each refresh costs as much as a line
        for y in range(top, top + max(1, self.size.height)):
            shown = self._shown.get(y)
            if shown is None or shown[0] != self._paint(y):
                first = y if first is None else first
            elif first is not None:
                self.refresh_lines(first, y - first)
                first = None
        if first is not None:
            self.refresh_lines(first, top + max(1, self.size.height) - first)

    def show_lines(self, lines: list[Line], width: int = 0) -> None:
        self.show(len(lines), width, lambda y: lines[y])

    def keep_in_sight(self, region: Region) -> None:
        self.scroll_to_region(region, animate=False, force=True)

    def _keep_at_end(self) -> None:
        if self.follow and self._at_end:
            self.call_after_refresh(self._go_to_end)

    def _go_to_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True, immediate=True)
        if self.show_vertical_scrollbar:
            # A bar that came up after the scrolling does not know of it.
            self.vertical_scrollbar.position = self.scroll_y

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        # Content that grows does not scroll, so this is the reader or the way to the end.
        self._at_end = new_value >= self.max_scroll_y

    def _paint(self, y: int) -> Line:
        if not 0 <= y < self._count:
            return ()
        line = self._painted.get(y)
        if line is None:
            line = self._painted[y] = self._line_at(y)
        return line

    def render_line(self, y: int) -> Strip:
        return self.render_lines(Region(0, y, self.outer_size.width, 1))[0]

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual's own way looks at each line for borders, padding, tint, opacity and filters.
        There are none here, and what filters do (NO_COLOR) is in the ink."""
        left, top = self.scroll_offset
        width = self.outer_size.width  # a scroll bar lies over it
        if (left, width) != self._drawn_for:
            self._shown.clear()
            self._drawn_for = left, width
        strips = [self._strip(top + y, left, width) for y in crop.line_range]
        first, last = crop.column_span
        if (first, last) == (0, width):
            return strips
        return [strip.crop(first, last) for strip in strips]

    def _strip(self, y: int, left: int, width: int) -> Strip:
        """Columns `left` to `left` + `width` of line `y`."""
        line = self._paint(y)
        shown = self._shown.get(y)
        if shown is not None and shown[0] == line:
            return shown[1]
        inked = self._inked or self._ink()
        segments = [Segment(text, inked[ink]) for text, ink in line]
        # Measured as a whole: Textual would measure each segment.
        length = cell_len("".join([text for text, _ in line]))
        if length < left + width:
            segments.append(Segment(" " * (left + width - length), self._base))
            length = left + width
        strip = Strip(segments, length)
        if left or length > width:
            strip = strip.crop(left, left + width)
        self._shown[y] = line, strip
        return strip

    def _ink(self) -> dict[str, Style]:
        """Every segment carries a full style: without one NO_COLOR breaks, and without the widget's
        own background the line differs from its surroundings."""
        base = self.rich_style
        segments = [Segment("", base), *(Segment("", base + style) for style in STYLES.values())]
        for each in self.get_line_filters():
            segments = each.apply(segments, self.background_colors[1])
        self._base, *styles = [segment.style or base for segment in segments]
        self._inked = dict(zip(STYLES, styles, strict=True))
        return self._inked

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._inked = {}
        self._shown = {}

    def on_resize(self, event: events.Resize) -> None:
        self._shown.clear()
        self._keep_at_end()  # how far it can scroll is known only after its size is

    def on_click(self, event: events.Click) -> None:
        left, top = self.scroll_offset
        self.post_message(self.Clicked(self, event.x + left, event.y + top))
