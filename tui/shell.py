"""The app without its keys: areas, refreshes, lifetime. It only watches.

A client of its own: leaving it, killing it or losing its terminal never touches the run.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import tzinfo

from textual.app import App, ComposeResult
from textual.containers import Container, Vertical
from textual.timer import Timer

from harness.errors import ExitCode
from harness.faults import Fault
from harness.orders import Command
from harness.tui import meshpaint, paint
from harness.tui.actions import ACTIONS, keys_text
from harness.tui.dialogs import TextScreen
from harness.tui.feed import Feed
from harness.tui.grid import Grid, Layout, Zoom, make_grid
from harness.tui.lines import LinesView
from harness.tui.logwatch import LogWatch
from harness.tui.meshpaint import Mesh
from harness.tui.pages import chaos, collectives, groupedstacks, incidents, metrics
from harness.tui.pages.listing import FaultKind, Listing, Scene
from harness.tui.paint import Line
from harness.tui.replay import ReplayFeed
from harness.tui.theme import BACKGROUND, Ink
from harness.tui.view import View, build
from harness.tui.where import Where

Do = Callable[[Command], tuple[bool, str]]

REFRESH_HZ = 4
_SHARE = 0.08
"""Of a core that looking for news may take: a view of very many ranks is made less often."""
RATES = (0.5, 1, 2, 4, 8)
WIDE = 110
SIDE_WIDTH = 48
IDLE_NS = 3_000_000_000
LISTINGS: Mapping[str, Callable[[Scene], Listing]] = {
    "collectives": collectives.listing,
    "stacks": groupedstacks.listing,
    "metrics": metrics.listing,
    "incidents": incidents.listing,
    "chaos": chaos.listing,
}
PAGES = ("mesh", "collectives", "stacks", "logs", "metrics", "incidents", "chaos")


def _no_kinds() -> Sequence[FaultKind]:
    return ()


def _no_fault(_: str) -> Fault:
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says about the screens."""

    run_argument: str = ""
    """RUN as it was typed, for the commands that are shown."""
    ascii_only: bool = False
    readonly: bool = False
    """Nothing that changes the run can be asked for."""
    files: bool = True
    """Whether screens may be written as files: not by those who come through a browser."""
    keys: Mapping[str, str] = field(
        default_factory=lambda: {action.name: action.keys for action in ACTIONS}
    )
    kinds: Callable[[], Sequence[FaultKind]] = _no_kinds
    """Reads the kinds of fault."""
    read_fault: Callable[[str], Fault] = _no_fault
    """A line of `harness inject` as a fault. Raises UsageError."""
    zone: tzinfo | None = None
    """Of the times that are shown; None: the machine's own."""
    flops_per_token: float = 0.0
    peak_tflops: float = 0.0


class Shell(App[None]):
    """Shows what `feed` holds. `do` carries out a command, None when that is not possible.

    `clock` gives wall-clock nanoseconds; without it the feed has its own.
    """

    TITLE = "harness tui"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: {BACKGROUND}; layout: vertical; }}
    LinesView {{ background: {BACKGROUND}; }}
    #header {{ height: 1; background: #1a2027; }}
    #banner {{ height: 2; }}
    #body, #log_page, #list_page {{ height: 1fr; }}
    #body.wide {{ layout: horizontal; }}
    LinesView {{
        overflow-x: hidden;
        scrollbar-color: #3a424c; scrollbar-color-hover: #7d8590;
        scrollbar-color-active: #7d8590; scrollbar-background: {BACKGROUND};
        scrollbar-background-hover: {BACKGROUND}; scrollbar-background-active: {BACKGROUND};
    }}
    #mesh {{ width: 1fr; height: 1fr; overflow-x: auto; }}
    #side {{ height: 1fr; }}
    #body.wide #side {{ width: {SIDE_WIDTH}; }}
    #incidents, #incidents_title, #log_title {{ height: auto; }}
    #log {{ height: 1fr; }}
    #status {{ height: 1; background: #1a2027; }}
    #footer {{ height: 1; }}
    .hidden {{ display: none; }}
    .ascii LinesView {{ scrollbar-size: 0 0; }}
    """

    def __init__(
        self,
        feed: Feed,
        options: Options | None = None,
        *,
        logs: LogWatch | None = None,
        do: Do | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self.feed = feed
        self.options = options or Options()
        self.logs = logs
        self.do = do
        self.set_class(self.options.ascii_only, "ascii")
        self.clock: Callable[[], int] = clock or (lambda: self.feed.now_ns)
        self.bug: Exception | None = None
        """What broke the app, for whoever ran it."""
        self.cursor = 0
        self.page = "mesh"
        self.where = Where()
        self.zoom: Zoom | None = None
        self.arrangement = 0
        self.muted = False
        self.rate = float(REFRESH_HZ)
        self.shown_view = self._build()
        self.grid: Grid | None = None
        self.listing = Listing()
        self.chosen: dict[str, Hashable] = {}
        """By screen: the key of the row that is chosen."""
        self._grid_key: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()
        self._timer: Timer | None = None
        self._rested = 0.0
        """When the next look for news may cost something again."""
        self.moved_ns = 0
        self._culprit: int | None = None
        self.message = ""
        self.read_trouble = ""
        self.kinds: Sequence[FaultKind] = ()

    # --- set up and leave ----------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield LinesView(id="header")
        yield LinesView(id="banner")
        with Container(id="body"):
            yield LinesView(id="mesh")
            with Vertical(id="side"):
                yield LinesView(id="incidents_title")
                yield LinesView(id="incidents")
                yield LinesView(id="log_title")
                yield LinesView(id="log", follow=True)
        for name in ("log_page", "list_page"):
            page = LinesView(id=name, follow=name == "log_page")
            page.add_class("hidden")
            yield page
        yield LinesView(id="status")
        yield LinesView(id="footer")

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Without this the terminal stays in the alternate screen with mouse reporting on.
            with suppress(ValueError, RuntimeError):  # a thread of a server has no signals
                loop.add_signal_handler(number, self._leave_by_signal, number)
        self.set_rate(self.rate)
        self.call_after_refresh(self.show)

    def set_rate(self, rate: float) -> None:
        """Look for news so often a second."""
        self.rate = rate
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.screen_stack[0].set_interval(1 / rate, self.tick)

    def _handle_exception(self, error: Exception) -> None:
        """A bug leaves as any other error of the command does, once the terminal is given back:
        Textual itself would print pages of it and has no public way to be told otherwise."""
        self.bug = self.bug or error
        self.exit(return_code=ExitCode.INTERNAL)

    def _leave_by_signal(self, number: int) -> None:
        self.exit(return_code=128 + number)

    # --- refresh -------------------------------------------------------------------------------

    def _build(self) -> View:
        with self.feed.state() as state:
            return build(state, self.clock())

    def tick(self) -> None:
        """Redraw when something new is known, or when a second has passed in a live run."""
        still = self.feed.label == "ENDED" or self.feed.holding
        second = 0 if still else self.clock() // 1_000_000_000
        seen = (self.feed.version, self.logs.version if self.logs else 0, second)
        if seen != self._seen and time.monotonic() >= self._rested:
            self._seen = seen
            self.show()

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Build the view of this moment and give every area its lines."""
        if not self.is_running or not self.screen_stack:
            return  # a timer may still fire while the app is being taken down
        begun = time.thread_time()
        try:
            self._draw()
        except Exception as error:  # timers of a screen do not reach the hook below
            self._handle_exception(error)
        self._rested = time.monotonic() + (time.thread_time() - begun) / _SHARE

    def _draw(self) -> None:
        before = self.shown_view
        self.shown_view = view = self._build()
        self.cursor = min(self.cursor, max(0, len(view.cells) - 1))
        self._look_at_culprit(before, view)
        self._show_main(view)
        top = self.screen
        if isinstance(top, TextScreen):
            top.show()

    def _look_at_culprit(self, before: View, view: View) -> None:
        """Move to the rank the banner names when that is news and the user is not at work."""
        if view.culprit == self._culprit:
            return
        self._culprit = view.culprit
        news = len(view.incidents) > len(before.incidents) and self.feed.label == "LIVE"
        if news and not self.muted:
            self.bell()
        if view.culprit is not None and self.clock() - self.moved_ns > IDLE_NS:
            self.go_to_rank(view.culprit)

    def go_to_rank(self, rank: int) -> bool:
        """Put the cursor of the mesh on `rank`; whether there is such a one."""
        raise NotImplementedError

    def area(self, name: str) -> LinesView:
        return self.screen_stack[0].query_one(f"#{name}", LinesView)

    @property
    def replayed(self) -> bool:
        """Whether a run is shown once more: its logs hold no times and are not of the moment."""
        return isinstance(self.feed, ReplayFeed)

    @property
    def page_area(self) -> LinesView:
        """What scrolls on the present screen, other than the mesh."""
        return self.area("log_page" if self.page == "logs" else "list_page")

    def _show_main(self, view: View) -> None:
        width, height = self.size
        ascii_only = self.options.ascii_only
        label = "HELD" if self.feed.holding and self.feed.held_ns is not None else self.feed.label
        self.area("header").show_lines([paint.header_line(view, width, label)])
        self.area("banner").show_lines([*paint.banner_lines(view, width, ascii_only)])
        self.area("footer").show_lines([self.footer(width)])
        self.area("status").show_lines([self._status(view, width)])
        wide = width >= WIDE
        # Also for the screens that do not show it: keys move over it from there.
        grid = self._make_grid(view, width - SIDE_WIDTH if wide else width, height - 5)
        if self.page == "mesh":
            self._show_mesh(view, grid, width, height - 5)
        elif self.page == "logs":
            self._show_log(self.area("log_page"), width)
        else:
            self._show_listing(view)

    def scene(self, view: View) -> Scene:
        """What the screens made of rows are made from."""
        width, height = self.size
        rank = view.cells[self.cursor].rank if view.cells else 0
        return Scene(
            model=self.feed.model,
            view=view,
            now_ns=self.clock(),
            width=width - 1,
            height=height - 5,
            where=self.where,
            rank=rank,
            selected=self.chosen.get(self.page),
            zone=self.options.zone,
            ascii_only=self.options.ascii_only,
            kinds=self.kinds,
            flops_per_token=self.options.flops_per_token,
            peak_tflops=self.options.peak_tflops,
        )

    def _show_listing(self, view: View) -> None:
        with self.feed.lock:
            self.listing = LISTINGS[self.page](self.scene(view))
        lines = self.listing.lines(self.listing.position(self.chosen.get(self.page)))
        self.area("list_page").show_lines(lines)

    def hidden(self, view: View) -> frozenset[int]:
        """Positions of the cells that the filter leaves out."""
        if not self.where.about_ranks:
            return frozenset()
        none: Mapping[str, int] = {}
        places = view.coordinates
        return frozenset(
            at
            for at, cell in enumerate(view.cells)
            if not self.where.cell(cell, places.get(cell.rank, none))
        )

    def _show_mesh(self, view: View, grid: Grid, width: int, height: int) -> None:
        wide = width >= WIDE
        mesh = Mesh(
            view=view,
            grid=grid,
            cursor=self.cursor,
            hidden=self.hidden(view),
            ascii_only=self.options.ascii_only,
        )
        columns, lines = meshpaint.mesh_size(grid)
        self.screen_stack[0].query_one("#body").set_class(wide, "wide")
        left = height if wide else height - min(lines, height)
        side = self.screen_stack[0].query_one("#side")
        side.set_class(left < 3, "hidden")
        area = self.area("mesh")
        area.styles.height = "1fr" if wide or left < 3 else lines
        area.show(lines, columns, lambda y: meshpaint.mesh_line(mesh, y))
        if left >= 3:
            self._show_side(mesh, SIDE_WIDTH if wide else width, left)

    def layout_of(self, view: View) -> Layout:
        """What the grid is made for."""
        return Layout(
            count=len(view.cells),
            axes=view.axes,
            nodes=tuple(cell.node_rank for cell in view.cells),
            order=view.order(),
            arrangement=self.arrangement,
            zoom=self.zoom,
        )

    def _make_grid(self, view: View, width: int, height: int) -> Grid:
        """The grid, made anew only when the ranks, the room or what was chosen change."""
        head = view.header
        key: tuple[object, ...] = (
            *(head.attempt, len(view.cells), view.axes, len(view.coordinates)),
            *(width, height, self.zoom, self.arrangement),
        )
        if self.grid is None or key != self._grid_key:
            self.grid = make_grid(self.layout_of(view), width, height)
            self._grid_key = key
        return self.grid

    def _show_side(self, mesh: Mesh, width: int, height: int) -> None:
        """Incidents and log beside or below the mesh; without cards, first the troubled ranks."""
        view, ascii_only = mesh.view, self.options.ascii_only
        with_log = self.logs is not None and height >= 6 and not self.replayed
        most = height - 1 if not with_log else max(2, height // 2 - 1)
        if not mesh.grid.cards and view.cells:
            rows = meshpaint.bad_lines(mesh, width, most)
            troubled = view.culprit is not None or view.next_troubled(0, 1) is not None
            title = "troubled ranks" if troubled else "ranks"
        else:
            found = incidents.incident_lines(view.incidents, width, self.options.zone, ascii_only)
            rows, title = found[:most], f"incidents ({len(view.incidents)})"
        self.area("incidents_title").show_lines([paint.rule(title, width, ascii_only)])
        area = self.area("incidents")
        area.styles.height = len(rows)
        area.show_lines(rows)
        self.area("log_title").set_class(not with_log, "hidden")
        self.area("log").set_class(not with_log, "hidden")
        if with_log:
            self.area("log_title").show_lines([paint.rule("log", width, ascii_only)])
            self._show_log(self.area("log"), width)

    def _show_log(self, area: LinesView, width: int) -> None:
        if self.logs is None:
            area.show_lines([((" the logs lie on the machine of the run", "dim"),)])
            return
        lines = self.logs.lines()
        if not lines:
            area.show_lines([((" no output so far", "dim"),)])
            return
        if self.where.terms:
            with self.feed.lock:
                chosen = self.scene(self.shown_view).chosen()
            lines = [
                line
                for line in lines
                if self.where.line(line.text)
                and (chosen is None or not chosen.isdisjoint(line.ranks))
            ]
            if not lines:
                area.show_lines([((" no line is chosen by the filter", "dim"),)])
                return
        ascii_only = self.options.ascii_only
        area.show(len(lines), width, lambda y: paint.log_line(lines[y], width, ascii_only))

    def _status(self, view: View, width: int) -> Line:
        ascii_only = self.options.ascii_only
        if self.message:
            return ((" " + paint.fit(self.message, width - 2, ascii_only), "key"),)
        if self.feed.trouble and self.feed.trouble != self.read_trouble:
            return ((" " + paint.fit(self.feed.trouble, width - 2, ascii_only), "warn"),)
        if self.where.terms:
            left = len(view.cells) - len(self.hidden(view))
            text = f"filter {self.where.text}: {left} of {len(view.cells)} ranks; Esc ends it"
            return ((" " + paint.fit(text, width - 2, ascii_only), "warn"),)
        with self.feed.lock:
            losses = self.feed.model.history.losses()
        return paint.status_line(view, self.cursor, losses, width, ascii_only)

    def footer(self, width: int) -> Line:
        """As many hints as there is room for, help first."""
        names = ["help", "detach", *_HINTS.get(self.page, _HINTS["rows"])]
        line: list[tuple[str, Ink]] = []
        for name in names:
            key = keys_text(self.options.keys[name]).split(" ")[0]
            word = _HINT_WORDS[name]
            width -= len(key) + len(word) + 3
            if key and width >= 0:
                line += [(f" {key}", "key"), (f" {word} ", "dim")]
        return tuple(line)


_HINTS: Mapping[str, Sequence[str]] = {
    "mesh": ("next-bad", "detail", "filter", "stacks", "logs", "incidents", "palette"),
    "logs": ("mesh", "filter", "follow", "down", "palette"),
    "metrics": ("mesh", "down", "palette"),
    "rows": ("mesh", "detail", "down", "filter", "palette"),
    "chaos": ("mesh", "detail", "down", "palette"),
    "stacks": ("mesh", "take-stacks", "detail", "filter", "palette"),
}
_HINT_WORDS: Mapping[str, str] = {
    "help": "help",
    "detach": "detach",
    "next-bad": "next bad",
    "detail": "detail",
    "filter": "filter",
    "stacks": "stacks",
    "logs": "logs",
    "incidents": "incidents",
    "palette": "more",
    "mesh": "mesh",
    "follow": "follow",
    "down": "down",
    "take-stacks": "take now",
}
