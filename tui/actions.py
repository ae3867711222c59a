"""THE table of all that can be done on the screens: one row serves keys, palette, help, keymap.

Each action has the command line that does the same, where there is one; a test walks the table and
compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Group = Literal["move", "screens", "look", "replay", "change"]
TITLES: Mapping[Group, str] = {
    "move": "moving",
    "screens": "screens",
    "look": "looking",
    "replay": "replay",
    "change": "changing the run (each asks first)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do. `name` is its name in the keymap and the palette, `keys` Textual's names of
    its default keys, `call` what the app runs. `cli` is the same on the command line."""

    name: str
    keys: str
    call: str
    words: str
    group: Group
    cli: str = ""

    @property
    def cli_text(self) -> str:
        """The command line as it is shown, without a rank of its own."""
        return self.cli.format(rank="RANK")

    @property
    def deed(self) -> bool:
        """Whether it changes the run."""
        return self.group == "change"


def _screen(key: str, page: str, words: str, cli: str) -> Action:
    return Action(
        name=page, keys=key, call=f"page('{page}')", words=words, group="screens", cli=cli
    )


ACTIONS: tuple[Action, ...] = (
    Action(
        name="help", keys="question_mark", call="help", words="keys and glyphs", group="look",
        cli="harness tui --help",
    ),
    Action(
        name="detach", keys="q,ctrl+c,ctrl+q", call="detach", words="leave; the run goes on",
        group="look",
    ),
    Action(
        name="palette", keys="colon,ctrl+p", call="palette", words="all actions by name",
        group="look",
    ),
    Action(name="left", keys="h,left", call="move(-1,0)", words="left", group="move"),
    Action(name="right", keys="l,right", call="move(1,0)", words="right", group="move"),
    Action(name="up", keys="k,up", call="move(0,-1)", words="up, or scroll", group="move"),
    Action(name="down", keys="j,down", call="move(0,1)", words="down, or scroll", group="move"),
    Action(name="page-up", keys="K,pageup", call="move(0,-10)", words="ten rows up", group="move"),
    Action(
        name="page-down", keys="J,pagedown", call="move(0,10)", words="ten rows down", group="move"
    ),
    Action(name="block-left", keys="H", call="block(-1)", words="a group left", group="move"),
    Action(name="block-right", keys="L", call="block(1)", words="a group right", group="move"),
    Action(name="first", keys="g,home", call="end(-1)", words="first", group="move"),
    Action(name="last", keys="G,end", call="end(1)", words="last", group="move"),
    Action(
        name="next-bad", keys="n", call="next_bad(1)", words="next rank in trouble", group="move"
    ),
    Action(
        name="previous-bad", keys="N", call="next_bad(-1)", words="previous rank in trouble",
        group="move",
    ),
    Action(
        name="detail", keys="enter", call="detail", words="all that is known of it", group="look"
    ),
    _screen("1,escape", "mesh", "the ranks on their mesh", "harness status"),
    _screen("2", "collectives", "process groups, and who is behind", "harness report"),
    _screen("3,s", "stacks", "where the ranks are, equal ones grouped", "harness stacks"),
    _screen("4", "logs", "what the ranks printed", "harness logs"),
    _screen("5", "metrics", "loss, throughput, MFU, memory, ETTR", "harness report --json"),
    _screen("6", "incidents", "what happened, and why", "harness report"),
    _screen("7", "chaos", "faults to inject, and those done", "harness chaos list"),
    Action(
        name="filter", keys="slash", call="filter", words="choose ranks or lines: dp=3 state=hung",
        group="look",
    ),
    Action(
        name="rank-logs", keys="o", call="rank_logs", words="log of the rank only", group="look",
        cli="harness logs --rank {rank}",
    ),
    Action(
        name="follow", keys="t", call="follow", words="follow the end of the log, or stop to",
        group="look", cli="harness logs -f",
    ),
    Action(name="zoom-in", keys="z", call="zoom(-1)", words="larger cells", group="look"),
    Action(name="zoom-out", keys="Z", call="zoom(1)", words="smaller cells", group="look"),
    Action(name="axes", keys="v", call="axes", words="turn the mesh", group="look"),
    Action(
        name="hold", keys="space", call="hold", words="hold the screen; nothing is lost",
        group="look",
    ),
    Action(name="faster", keys="plus", call="rate(1)", words="refresh more often", group="look"),
    Action(name="slower", keys="minus", call="rate(-1)", words="refresh less often", group="look"),
    Action(
        name="copy", keys="y", call="copy", words="copy what stands under the cursor", group="look"
    ),
    Action(
        name="write", keys="w", call="write", words="write this screen as SVG",
        group="look",
    ),
    Action(name="mute", keys="m", call="mute", words="no bell at incidents", group="look"),
    Action(
        name="take-stacks", keys="T", call="take_stacks", words="take all stacks now",
        group="look", cli="harness stacks",
    ),
    Action(
        name="next-frame", keys="right_square_bracket", call="frame(1)",
        words="the next moment with news", group="replay",
    ),
    Action(
        name="previous-frame", keys="left_square_bracket", call="frame(-1)",
        words="the moment before", group="replay",
    ),
    Action(
        name="play-faster", keys="full_stop", call="speed(1)", words="play faster", group="replay"
    ),
    Action(name="play-slower", keys="comma", call="speed(-1)", words="play slower", group="replay"),
    Action(
        name="next-incident", keys="i", call="incident(1)", words="the next incident",
        group="replay",
    ),
    Action(
        name="previous-incident", keys="I", call="incident(-1)", words="the incident before",
        group="replay",
    ),
    Action(
        name="time", keys="at", call="time", words="go to a time: 00:12:30, or +10, or -10",
        group="replay",
    ),
    Action(
        name="inject", keys="X", call="inject", words="inject a fault, where chaos is allowed",
        group="change", cli="harness inject kill --rank {rank}",
    ),
    Action(
        name="restart", keys="R", call="restart", words="restart from the newest checkpoint",
        group="change", cli="harness restart",
    ),
    Action(
        name="checkpoint", keys="C", call="checkpoint", words="save now, all ranks at one step",
        group="change", cli="harness ckpt save",
    ),
    Action(
        name="preempt", keys="P", call="preempt", words="save at one step, then stop the run",
        group="change", cli="harness stop --save",
    ),
    Action(
        name="stop", keys="S", call="stop_run", words="stop the run", group="change",
        cli="harness stop",
    ),
)  # fmt: skip
BY_NAME: Mapping[str, Action] = {action.name: action for action in ACTIONS}

KEY_WORDS: Mapping[str, str] = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "plus": "+",
    "minus": "-",
    "at": "@",
    "full_stop": ".",
    "comma": ",",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "space": "Space",
    "enter": "Enter",
    "escape": "Esc",
    "home": "Home",
    "end": "End",
    "left": "Left",
    "right": "Right",
    "up": "Up",
    "down": "Down",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}
"""What people call the keys that Textual names in its own way."""


def keys_text(keys: str) -> str:
    """`question_mark,ctrl+p` as `? Ctrl-P`."""
    return " ".join(_key_text(key.strip()) for key in keys.split(",") if key.strip())


def _key_text(key: str) -> str:
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:].upper()}"
    return KEY_WORDS.get(key, key)


def offered(*, deeds: bool, replay: bool) -> list[Action]:
    """Those that can be done on this view: `deeds`, when the run may be changed from it."""
    return [
        action
        for action in ACTIONS
        if (deeds or not action.deed) and (replay or action.group != "replay")
    ]
