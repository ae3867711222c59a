"""A line to type into, at the foot of the screen, with what can be chosen above it."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from harness.tui.dialogs import INPUT_CSS
from harness.tui.lines import LinesView
from harness.tui.paint import Line

Choice = tuple[str, Line]
"""What Enter gives, and the line that is shown."""


class Prompt(ModalScreen[str | None]):
    """Gives the text that was typed, or what was chosen; None when it was left.

    `above` makes the lines over the input from its text. `choices` makes what can be chosen with
    the arrows; without any, Enter gives the text itself.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", priority=True),
        Binding("ctrl+c", "app.detach", "detach", priority=True),
        Binding("up", "choose(-1)", "up", priority=True),
        Binding("down", "choose(1)", "down", priority=True),
    ]
    CSS = f"""
    Prompt {{ background: transparent; align: left bottom; }}
    Prompt > Vertical {{ height: auto; max-height: 100%; background: #1a2027; }}
    Prompt #above {{ height: 1; background: #1a2027; overflow-x: hidden; }}
    Prompt Horizontal {{ height: 1; background: #1a2027; }}
    Prompt #sign {{ height: 1; background: #1a2027; }}
    Prompt Input {{ width: 1fr; }}
    {INPUT_CSS}
    """

    def __init__(
        self,
        sign: str,
        value: str = "",
        *,
        above: Callable[[str], Sequence[Line]] = lambda _: (),
        choices: Callable[[str], Sequence[Choice]] | None = None,
    ) -> None:
        super().__init__()
        self._sign = sign
        self._value = value
        self._above = above
        self._choices = choices
        self._at = 0

    def compose(self) -> ComposeResult:
        with Vertical():
            yield LinesView(id="above")
            with Horizontal():
                sign = LinesView(id="sign")
                sign.styles.width = len(self._sign) + 2
                yield sign
                yield Input(self._value, id="line", select_on_focus=False)

    def on_mount(self) -> None:
        self.query_one("#sign", LinesView).show_lines([((f" {self._sign} ", "key"),)])
        line = self.query_one("#line", Input)
        line.focus()
        line.cursor_position = len(self._value)
        self._show()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        text = self.query_one("#line", Input).value
        lines = list(self._above(text))
        if self._choices is not None:
            found = self._choices(text)
            self._at = max(0, min(self._at, len(found) - 1))
            room = max(1, self.app.size.height - 4 - len(lines))
            top = max(0, min(self._at - room // 2, len(found) - room))
            lines += [
                ((">" if top + at == self._at else " ", "cursor"), *line)
                for at, (_, line) in enumerate(found[top : top + room])
            ]
            if not found:
                lines.append(((" nothing is called that", "warn"),))
        lines = lines[: max(1, self.app.size.height - 2)]
        above = self.query_one("#above", LinesView)
        above.styles.height = len(lines)
        above.show_lines(lines)

    def on_input_changed(self) -> None:
        self._at = 0
        self._show()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._choices is None:
            self.dismiss(message.value)
            return
        found = self._choices(message.value)
        self.dismiss(found[self._at][0] if found else None)

    def action_choose(self, step: int) -> None:
        self._at += step
        self._show()

    def action_leave(self) -> None:
        self.dismiss(None)
