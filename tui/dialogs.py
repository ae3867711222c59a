"""Screens that lie over the main one: rank detail, help, and the question before a deed."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from harness.tui.lines import LinesView
from harness.tui.paint import Line, legend_lines

_LEAVE: list[BindingType] = [
    ("escape", "leave", "back"),
    ("q", "leave", "back"),
    ("ctrl+c", "app.detach", "detach"),
]


def help_lines(*, deeds: bool, ascii_only: bool) -> list[Line]:
    """Keys and glyphs; with `deeds`, also the keys that change the run."""
    keys = [
        ("q, Ctrl-C", "detach: the run goes on"),
        ("arrows, h j k l", "move between ranks, or scroll"),
        ("J K, g G", "ten rows at a time; first and last"),
        ("n N", "next and previous rank in trouble"),
        ("Enter", "all that is known of the rank: exception, stack, output"),
        ("1 4 6", "mesh, logs, incidents; Esc goes back to the mesh"),
    ]
    if deeds:
        keys.append(("S", "stop the run (asks first)"))
        keys.append(("X", "kill the rank under the cursor, where chaos is allowed"))
    lines: list[Line] = [((" keys", "head"),)]
    lines += [((f"  {key:<16}", "key"), (text, "text")) for key, text in keys]
    return [*lines, (), ((" states", "head"),), *legend_lines(ascii_only)]


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
    TextScreen #text { height: 1fr; background: #11151a; padding: 0 1; }
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


class Confirm(ModalScreen[bool]):
    """Asks before a deed. Only `y` does it; Enter and everything else means no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "do it"),
        ("enter,escape,n,q", "answer(False)", "cancel"),
        ("ctrl+c", "app.detach", "detach"),
    ]
    CSS = """
    Confirm { align: center middle; }
    Confirm #question {
        width: 72; max-width: 100%; height: 9; background: #1a2027; padding: 1 2;
    }
    """

    def __init__(self, *, deed: str, effect: str, cost: str, command: str) -> None:
        super().__init__()
        self._lines: list[Line] = [
            ((deed, "title"),),
            ((effect, "text"),),
            ((cost, "text"),),
            ((f"same as: {command}", "dim"),),
            (),
            (("[ Cancel ]", "marked"), ("  Enter     ", "dim"), ("y", "key"), (" do it", "dim")),
        ]

    def compose(self) -> ComposeResult:
        yield LinesView(id="question")

    def on_mount(self) -> None:
        self.query_one("#question", LinesView).show_lines(self._lines)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
