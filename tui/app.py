"""The terminal app: keys, areas and refreshes around the pure view. It only watches.

A client of its own: leaving it, killing it or losing its terminal never touches the run.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from datetime import tzinfo
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.geometry import Region

from harness.errors import ExitCode
from harness.faults import Fault
from harness.orders import Command, Inject, StopRun
from harness.tui import paint
from harness.tui.detail import rank_detail
from harness.tui.dialogs import Confirm, TextScreen, help_lines
from harness.tui.feed import Feed
from harness.tui.grid import CARD_HEIGHT, Grid, make_grid
from harness.tui.lines import LinesView
from harness.tui.logwatch import LogWatch
from harness.tui.paint import Line
from harness.tui.theme import BACKGROUND, Ink
from harness.tui.view import View, build

Do = Callable[[Command], tuple[bool, str]]

REFRESH_HZ = 4
WIDE = 110
SIDE_WIDTH = 48
IDLE_NS = 3_000_000_000
_DETAIL_LOG_LINES = 20


class HarnessApp(App[None]):
    """Shows what `feed` holds. `do` carries out a command, None when that is not possible.

    `clock` gives wall-clock nanoseconds; `zone` the time zone of shown times, None for the
    machine's own.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("question_mark", "help", "help"),
        ("q,ctrl+c,ctrl+q", "detach", "detach"),
        ("h,left", "move(-1,0)", "left"),
        ("l,right", "move(1,0)", "right"),
        ("k,up", "move(0,-1)", "up"),
        ("j,down", "move(0,1)", "down"),
        ("K,pageup", "move(0,-10)", "page up"),
        ("J,pagedown", "move(0,10)", "page down"),
        ("g,home", "end(-1)", "first"),
        ("G,end", "end(1)", "last"),
        ("n", "next_bad(1)", "next bad"),
        ("N", "next_bad(-1)", "previous bad"),
        ("enter", "detail", "rank"),
        ("1,escape", "page('mesh')", "mesh"),
        ("4", "page('logs')", "logs"),
        ("6", "page('incidents')", "incidents"),
        ("S", "stop_run", "stop the run"),
        ("X", "kill_rank", "kill a rank"),
    ]
    CSS = f"""
    Screen {{ background: {BACKGROUND}; layout: vertical; }}
    LinesView {{ background: {BACKGROUND}; }}
    #header {{ height: 1; background: #1a2027; }}
    #banner {{ height: 2; }}
    #body, #log_page, #incident_page {{ height: 1fr; }}
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
    HarnessApp.ascii LinesView {{ scrollbar-size: 0 0; }}
    """

    def __init__(
        self,
        feed: Feed,
        *,
        logs: LogWatch | None = None,
        do: Do | None = None,
        run_argument: str = "",
        ascii_only: bool = False,
        clock: Callable[[], int] = time.time_ns,
        zone: tzinfo | None = None,
    ) -> None:
        super().__init__()
        self.feed = feed
        self.logs = logs
        self.do = do
        self.run_argument = run_argument
        self.ascii_only = ascii_only
        self.set_class(ascii_only, "ascii")
        self.clock = clock
        self.zone = zone
        self.bug: Exception | None = None
        """What broke the app, for whoever ran it."""
        self.cursor = 0
        self.page = "mesh"
        self.shown_view = self._build()
        self.grid: Grid | None = None
        self._grid_key: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()
        self._moved_ns = 0
        self._culprit: int | None = None
        self._message = ""
        self._read_trouble = ""
        self._detail_log: tuple[str, ...] = ()

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
        log_page = LinesView(id="log_page", follow=True)
        log_page.add_class("hidden")
        yield log_page
        incident_page = LinesView(id="incident_page")
        incident_page.add_class("hidden")
        yield incident_page
        yield LinesView(id="status")
        yield LinesView(id="footer")

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Without this the terminal stays in the alternate screen with mouse reporting on.
            loop.add_signal_handler(number, self._leave_by_signal, number)
        self.screen.set_interval(1 / REFRESH_HZ, self.tick)
        self.call_after_refresh(self.show)

    def _leave_by_signal(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def action_detach(self) -> None:
        self.exit(return_code=0)

    # --- refresh -------------------------------------------------------------------------------

    def _build(self) -> View:
        with self.feed.state() as state:
            return build(state, self.clock())

    def tick(self) -> None:
        """Redraw when something new is known, or when a second has passed in a live run."""
        second = 0 if self.feed.label == "ENDED" else self.clock() // 1_000_000_000
        seen = (self.feed.version, self.logs.version if self.logs else 0, second)
        if seen != self._seen:
            self._seen = seen
            self.show()

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Build the view of this moment and give every area its lines."""
        if not self.is_running or not self.screen_stack:
            return  # a timer may still fire while the app is being taken down
        try:
            self._draw()
        except Exception as error:  # the border of the app: the terminal is given back first
            self.bug = error
            self.exit(return_code=ExitCode.INTERNAL)

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
        if len(view.incidents) > len(before.incidents) and self.feed.label == "LIVE":
            self.bell()
        if view.culprit is not None and self.clock() - self._moved_ns > IDLE_NS:
            self._go_to_rank(view.culprit)

    def _area(self, name: str) -> LinesView:
        return self.screen_stack[0].query_one(f"#{name}", LinesView)

    def _show_main(self, view: View) -> None:
        width, height = self.size
        feed = self.feed.label
        self._area("header").show_lines([paint.header_line(view, width, feed)])
        self._area("banner").show_lines([*paint.banner_lines(view, width, self.ascii_only)])
        self._area("footer").show_lines([self._footer(width)])
        self._area("status").show_lines([self._status(view, width)])
        if self.page == "mesh":
            self._show_mesh(view, width, height - 5)
        elif self.page == "logs":
            self._show_log(self._area("log_page"), width)
        else:
            rows = paint.incident_page(view.incidents, width, self.zone, self.ascii_only)
            self._area("incident_page").show_lines(rows)

    def _show_mesh(self, view: View, width: int, height: int) -> None:
        wide = width >= WIDE
        room = width - SIDE_WIDTH if wide else width
        grid = self._make_grid(view, room, height)
        columns, lines = paint.mesh_size(grid)
        self.screen_stack[0].query_one("#body").set_class(wide, "wide")
        left = height if wide else height - min(lines, height)
        side = self.screen_stack[0].query_one("#side")
        side.set_class(left < 3, "hidden")
        mesh = self._area("mesh")
        mesh.styles.height = "1fr" if wide or left < 3 else lines
        cursor = self.cursor
        mesh.show(
            lines,
            columns,
            lambda y: paint.mesh_line(view, grid, y, cursor, self.ascii_only),
        )
        if left >= 3:
            self._show_side(view, SIDE_WIDTH if wide else width, left, grid.cards)

    def _make_grid(self, view: View, width: int, height: int) -> Grid:
        """The grid, made anew only when the ranks or the room change."""
        key = (view.header.attempt, len(view.cells), view.axes, width, height)
        if self.grid is None or key != self._grid_key:
            nodes = [cell.node_rank for cell in view.cells]
            self.grid = make_grid(len(view.cells), view.axes, width, height, nodes)
            self._grid_key = key
        return self.grid

    def _show_side(self, view: View, width: int, height: int, cards: bool) -> None:
        """Incidents and log beside or below the mesh; without cards, first the troubled ranks."""
        rows = paint.incident_lines(view.incidents, width, self.zone, self.ascii_only)
        title = f"incidents ({len(view.incidents)})"
        if not cards and view.cells:
            bad = paint.bad_lines(view, self.cursor, width, self.ascii_only)
            rows, title = bad, "ranks"
            if view.culprit is not None or view.next_troubled(0, 1) is not None:
                title = "troubled ranks"
        with_log = self.logs is not None and height >= 6
        most = height - 1 if not with_log else max(2, height // 2 - 1)
        rows = rows[:most]
        self._area("incidents_title").show_lines([paint.rule(title, width, self.ascii_only)])
        incidents = self._area("incidents")
        incidents.styles.height = len(rows)
        incidents.show_lines(rows)
        self._area("log_title").set_class(not with_log, "hidden")
        self._area("log").set_class(not with_log, "hidden")
        if with_log:
            self._area("log_title").show_lines([paint.rule("log", width, self.ascii_only)])
            self._show_log(self._area("log"), width)

    def _show_log(self, area: LinesView, width: int) -> None:
        if self.logs is None:
            area.show_lines([((" the logs lie on the machine of the run", "dim"),)])
            return
        lines = self.logs.lines()
        if not lines:
            area.show_lines([((" no output so far", "dim"),)])
            return
        area.show(len(lines), width, lambda y: paint.log_line(lines[y], width, self.ascii_only))

    def _status(self, view: View, width: int) -> Line:
        if self._message:
            return ((" " + paint.fit(self._message, width - 2, self.ascii_only), "key"),)
        if self.feed.trouble and self.feed.trouble != self._read_trouble:
            return ((" " + paint.fit(self.feed.trouble, width - 2, self.ascii_only), "warn"),)
        with self.feed.lock:
            losses = list(self.feed.losses)
        return paint.status_line(view, self.cursor, losses, width, self.ascii_only)

    def _footer(self, width: int) -> Line:
        hints = [("?", "help"), ("q", "detach"), ("n", "next bad"), ("Enter", "rank")]
        if self.page != "mesh":
            hints = [("?", "help"), ("q", "detach"), ("1", "mesh"), ("j k", "scroll")]
        hints += [("4", "logs"), ("6", "incidents")]
        line: list[tuple[str, Ink]] = []
        for key, word in hints:
            width -= len(key) + len(word) + 3
            if width >= 0:
                line += [(f" {key}", "key"), (f" {word} ", "dim")]
        return tuple(line)

    # --- keys ----------------------------------------------------------------------------------

    def action_page(self, page: str) -> None:
        self.page = page
        self._message = ""
        screen = self.screen_stack[0]
        for name, area in (("mesh", "body"), ("logs", "log_page"), ("incidents", "incident_page")):
            screen.query_one(f"#{area}").set_class(name != page, "hidden")
        self.call_after_refresh(self.show)

    def action_move(self, x: int, y: int) -> None:
        if self.page != "mesh":
            self._scrolled_area().scroll_relative(y=y, animate=False)
            return
        if self.grid is None or not self.shown_view.cells:
            return
        row, column = self.grid.place(self.cursor)
        self._set_cursor(self.grid.at(row + y, column + x))

    def action_end(self, which: int) -> None:
        if self.page != "mesh":
            area = self._scrolled_area()
            area.scroll_to(y=0 if which < 0 else area.max_scroll_y, animate=False)
        elif self.shown_view.cells:
            self._set_cursor(0 if which < 0 else len(self.shown_view.cells) - 1)

    def _scrolled_area(self) -> LinesView:
        return self._area("log_page" if self.page == "logs" else "incident_page")

    def action_next_bad(self, step: int) -> None:
        if not self.shown_view.cells:
            return
        rank = self.shown_view.next_troubled(self.shown_view.cells[self.cursor].rank, step)
        if rank is None:
            self._say("no rank is in trouble")
            return
        self._moved_ns = self.clock()
        self._go_to_rank(rank)
        self._load_detail_log()
        self.show()

    def _go_to_rank(self, rank: int) -> None:
        for index, cell in enumerate(self.shown_view.cells):
            if cell.rank == rank:
                self.cursor = index
                self.call_after_refresh(self._keep_cursor_in_sight)

    def _set_cursor(self, index: int) -> None:
        self._moved_ns = self.clock()
        self._message = ""
        self._read_trouble = self.feed.trouble
        self.cursor = index
        self.show()
        self._keep_cursor_in_sight()

    def _keep_cursor_in_sight(self) -> None:
        grid = self.grid
        if grid is None or self.cursor >= len(self.shown_view.cells):
            return
        row, column = grid.place(self.cursor)
        if grid.cards:
            region = Region(column * grid.width, row * CARD_HEIGHT, grid.width, CARD_HEIGHT)
        else:
            before = sum(1 for group in grid.rows[row] if group[-1] < self.cursor)
            x = grid.label_width + 2 + column * 2 + before * 2
            region = Region(x, row + (1 if grid.heads else 0), 2, 1)
        self._area("mesh").keep_in_sight(region)

    def on_lines_view_clicked(self, message: LinesView.Clicked) -> None:
        grid = self.grid
        if message.area.id != "mesh" or grid is None:
            return
        for index in range(len(self.shown_view.cells)):
            row, column = grid.place(index)
            if grid.cards and (row, column) == (message.y // CARD_HEIGHT, message.x // grid.width):
                self._set_cursor(index)
                return

    def action_detail(self) -> None:
        if not self.shown_view.cells:
            self._say("no rank has been started yet")
            return
        self._load_detail_log()
        self.push_screen(TextScreen(self._detail_title, self._detail_content))

    def _load_detail_log(self) -> None:
        rank = self.shown_view.cells[self.cursor].rank
        logs = self.logs
        self._detail_log = logs.last_of_rank(rank, _DETAIL_LOG_LINES) if logs else ()

    def _detail_title(self) -> Line:
        return paint.header_line(self.shown_view, self.size.width, self.feed.label)

    def _detail_content(self) -> list[Line]:
        if not self.shown_view.cells:
            return []
        rank = self.shown_view.cells[self.cursor].rank
        with self.feed.state() as state:
            lines = rank_detail(state, self.shown_view, rank, self._detail_log)
        return paint.detail_lines(lines)

    def action_help(self) -> None:
        self.push_screen(TextScreen(lambda: ((" help", "title"),), self._help))

    def _help(self) -> list[Line]:
        return help_lines(deeds=self.do is not None, ascii_only=self.ascii_only)

    # --- deeds ---------------------------------------------------------------------------------

    def _say(self, message: str) -> None:
        self._message = message
        self.show()

    def action_stop_run(self) -> None:
        if not self._may_act():
            return
        header = self.shown_view.header
        kept = header.checkpoint_step
        lost = header.step - kept if kept is not None else header.step
        self._ask(
            Confirm(
                deed=f"Stop run {header.run}?",
                effect=f"All {header.world_size} ranks are told to end; the run is over then.",
                cost=f"Lost: {lost} steps since the newest checkpoint.",
                command=f"harness stop {self.run_argument}".strip(),
            ),
            StopRun(why="asked for in the terminal view", signal=0),
        )

    def action_kill_rank(self) -> None:
        if not self._may_act() or not self.shown_view.cells:
            return
        rank = self.shown_view.cells[self.cursor].rank
        self._ask(
            Confirm(
                deed=f"Kill rank {rank} on purpose?",
                effect="SIGKILL, as a test of recovery; the run judges it and restarts.",
                cost="Lost: the steps since the newest checkpoint.",
                command=f"harness inject kill --rank {rank} {self.run_argument}".strip(),
            ),
            Inject(fault=Fault(kind="kill", rank=rank)),
        )

    def _may_act(self) -> bool:
        if self.do is None:
            self._say("this view is read-only")
        elif self.feed.label == "ENDED":
            self._say("the run has ended")
        else:
            return True
        return False

    def _ask(self, question: Confirm, command: Command) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._carry_out(command), exclusive=True)

        self.push_screen(question, answered)

    async def _carry_out(self, command: Command) -> None:
        assert self.do is not None
        accepted, why = await asyncio.to_thread(self.do, command)
        word = "accepted" if accepted else "refused"
        self._say(f"{word}: {why}" if why else word)
