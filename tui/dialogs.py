"""Screens that lie over the main one: rank detail, help, and the question before a deed."""

import textwrap
from collections.abc import Callable, Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from harness.tui.actions import TITLES, Action, Group, keys_text, offered
from harness.tui.lines import LinesView
from harness.tui.paint import Line, legend_lines

_LEAVE: list[BindingType] = [
    ("escape", "leave", "back"),
    ("q", "leave", "back"),
    ("ctrl+c", "app.detach", "detach"),
]


def help_lines(
    keys: Mapping[str, str], *, deeds: bool, replay: bool, ascii_only: bool
) -> list[Line]:
    """Keys and glyphs, as far as they do something on this view. `keys` is the keymap."""
    lines: list[Line] = []
    groups: dict[Group, list[Action]] = {}
    for action in offered(deeds=deeds, replay=replay):
        groups.setdefault(action.group, []).append(action)
    for group, title in TITLES.items():
        if group in groups:
            lines.append(((f" {title}", "head"),))
            lines += [_help_line(action, keys) for action in groups[group]]
            lines.append(())
    lines.append(((" filter", "head"),))
    lines += [((f"  {left:<20}", "key"), (right, "text")) for left, right in _FILTER]
    return [*lines, (), ((" states", "head"),), *legend_lines(ascii_only)]


_FILTER = (
    ("dp=3 pp=0-1", "on these coordinates"),
    ("rank=0-63,517", "these ranks; node= and local= too"),
    ("state=hung,slow", "in one of these states; phase= too"),
    ("step=<200", "so far; also <= > >="),
    ("!tp=0", "not there"),
    ("loss", "log lines that say it, a regular expression"),
)


def _help_line(action: Action, keys: Mapping[str, str]) -> Line:
    line: Line = ((f"  {keys_text(keys[action.name]):<16}", "key"), (action.words, "text"))
    return (*line, (f"   {action.cli_text}", "dim")) if action.cli else line


INPUT_CSS = """
    Input { background: #1a2027; color: #d5dae0; border: none; height: 1; padding: 0; }
    Input:focus { border: none; background: #1a2027; }
    Input > .input--cursor { background: #d5dae0; color: #11151a; text-style: none; }
    Input > .input--placeholder { color: #7d8590; }
"""


class TextScreen(ModalScreen[None]):
    """Lines to read and scroll; `content` is asked again at every refresh of the app."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_LEAVE,
        ("enter", "leave", "back"),
        ("question_mark", "leave", "back"),
        ("j,down", "scroll_by(1)", "down"),
        ("k,up", "scroll_by(-1)", "up"),
        ("J,pagedown", "scroll_by(10)", "page down"),
        ("K,pageup", "scroll_by(-10)", "page up"),
        ("n", "app.next_bad(1)", "next"),
        ("N", "app.next_bad(-1)", "previous"),
    ]
    CSS = """
    TextScreen { align: center middle; background: #11151a; }
    TextScreen > Vertical { width: 100%; height: 100%; }
    TextScreen #text { height: 1fr; background: #11151a; margin: 0 1; }
    TextScreen .edge { height: 1; background: #1a2027; }
    """

    def __init__(self, title: Callable[[], Line], content: Callable[[], list[Line]]) -> None:
        super().__init__()
        self._title = title
        self._content = content

    def compose(self) -> ComposeResult:
        with Vertical():
            title = LinesView(id="text_title")
            title.add_class("edge")
            yield title
            yield LinesView(id="text")
            foot = LinesView(id="text_foot")
            foot.add_class("edge")
            yield foot

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Draw what `content` says now."""
        if not self.query("#text"):
            return  # it is being put up, and a tick of the app has come first
        self.query_one("#text_title", LinesView).show_lines([self._title()])
        lines = self._content()
        width = max((sum(len(text) for text, _ in line) for line in lines), default=0)
        self.query_one("#text", LinesView).show_lines(lines, width)
        hints: Line = (
            (" Esc", "key"),
            (" back  ", "dim"),
            ("j k", "key"),
            (" scroll  ", "dim"),
            ("n N", "key"),
            (" next, previous bad rank", "dim"),
        )
        self.query_one("#text_foot", LinesView).show_lines([hints])

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_scroll_by(self, lines: int) -> None:
        self.query_one("#text", LinesView).scroll_relative(y=lines, animate=False)


_BOX, _PADDING = 72, 2


def _folded(line: Line, width: int) -> list[Line]:
    """A line of one ink as several that fit; others are short."""
    if len(line) != 1:
        return [line]
    ((text, ink),) = line
    return [((part, ink),) for part in textwrap.wrap(text, width, break_on_hyphens=False)]


class Confirm(ModalScreen[bool]):
    """Asks before a deed. Only `y` does it, or with `typed` only that word; Enter means no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "do it"),
        ("enter,escape,n,q", "answer(False)", "cancel"),
        ("ctrl+c", "app.detach", "detach"),
    ]
    CSS = f"""
    Confirm {{ align: center middle; background: #11151a 50%; }}
    Confirm #box {{
        width: {_BOX}; max-width: 100%; height: auto; background: #1a2027; padding: 1 {_PADDING};
    }}
    Confirm #question {{ height: auto; background: #1a2027; }}
    {INPUT_CSS}
    """

    def __init__(self, *, deed: str, effect: str, cost: str, command: str, typed: str = "") -> None:
        super().__init__()
        self._typed = typed
        self._lines: list[Line] = [
            ((deed, "title"),),
            ((effect, "text"),),
            ((cost, "text"),),
            ((f"same as: {command}", "dim"),),
            (),
        ]
        if typed:
            words = f"to do it, type {typed} and Enter; Esc cancels"
            self._lines.append(((words, "key"),))
        else:
            self._lines.append(
                (("[ Cancel ]", "marked"), ("  Enter     ", "dim"), ("y", "key"), (" do it", "dim"))
            )

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield LinesView(id="question")
            if self._typed:
                yield Input(id="typed", compact=True)

    def on_mount(self) -> None:
        self._lay_out()
        if self._typed:
            self.query_one("#typed", Input).focus()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """All of the question is there to be read, however narrow the terminal."""
        width = min(_BOX, self.app.size.width) - 2 * _PADDING
        lines = [folded for line in self._lines for folded in _folded(line, width)]
        question = self.query_one("#question", LinesView)
        question.styles.height = len(lines)
        question.show_lines(lines)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        self.dismiss(message.value.strip() == self._typed)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes and not self._typed)
