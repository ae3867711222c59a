"""The app without its keys: areas, refreshes, lifetime. It only watches.

A client of its own: leaving it, killing it or losing its terminal never touches the run.
"""

import asyncio
import os
import signal
import threading
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
from harness.tui.actions import ACTIONS
from harness.tui.dialogs import TextScreen
from harness.tui.feed import GONE, Feed
from harness.tui.grid import Grid, Zoom
from harness.tui.lines import LinesView
from harness.tui.logwatch import LogWatch
from harness.tui.pages.listing import FaultKind, Listing
from harness.tui.replay import ReplayFeed
from harness.tui.theme import BACKGROUND
from harness.tui.view import View, build
from harness.tui.where import Where
from harness.tui.wording import clean

Do = Callable[[Command], tuple[bool, str]]

REFRESH_HZ = 4
_SHARE = 0.05
"""Of a core that looking for news may take: a view of very many ranks is made less often."""
RATES = (0.5, 1, 2, 4, 8)
SIDE_WIDTH = 48
_LEAVE_SECONDS = 5.0
IDLE_NS = 3_000_000_000


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
    title: bool = False
    """Whether the terminal is told what to call itself."""
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
        self._named = ""
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
        # A terminal that is gone takes no more writes, and Textual would wait for it for ever.
        last = threading.Timer(_LEAVE_SECONDS, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        self.exit(return_code=128 + number)

    # --- refresh -------------------------------------------------------------------------------

    def _build(self) -> View:
        with self.feed.state() as state:
            return build(state, self.clock(), gone=self.feed.label == GONE)

    def tick(self) -> None:
        """Redraw when something new is known, or when a second has passed in a live run."""
        still = self.feed.over or self.feed.holding
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
        self._name_terminal(view)
        if view.saving != before.saving and view.saving is not None and view.saving.over:
            self.message = clean(view.saving.words)
        self.show_view(view)
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

    def _name_terminal(self, view: View) -> None:
        """So that a tab in the background tells of trouble. Textual has no way of its own."""
        title = view.banner.title(view.header.run)
        if self.options.title and self._driver is not None and title != self._named:
            self._named = title
            self._driver.write(f"\x1b]2;{title}\x07")

    def go_to_rank(self, rank: int) -> bool:
        """Put the cursor of the mesh on `rank`; whether there is such a one."""
        raise NotImplementedError

    def area(self, name: str) -> LinesView:
        return self.screen_stack[0].query_one(f"#{name}", LinesView)

    @property
    def may_change(self) -> bool:
        """Whether the run can be changed from here at all."""
        return self.do is not None and not self.options.readonly

    @property
    def replayed(self) -> bool:
        """Whether a run is shown once more: its logs hold no times and are not of the moment."""
        return isinstance(self.feed, ReplayFeed)

    @property
    def page_area(self) -> LinesView:
        """What scrolls on the present screen, other than the mesh."""
        return self.area("log_page" if self.page == "logs" else "list_page")

    def show_view(self, view: View) -> None:
        """Give every area its lines."""
        raise NotImplementedError
