"""Colours. Every state is a glyph as well; colour only makes it quicker to see.

The state colours stay at least 20 apart (CIE 1976) for normal sight and under simulated
deuteranopia, protanopia and tritanopia (Machado, Oliveira and Fernandes 2009); a test holds it.
"""

from collections.abc import Mapping
from typing import Literal

from harness.tui.banner import Tone
from harness.tui.cells import CellState

StateColour = Literal["running", "slow", "waiting", "bad", "stale", "restarting", "corrupt"]
Ink = Literal[
    "text",
    "dim",
    "title",
    "head",
    "key",
    "good",
    "warn",
    "alarm",
    "running",
    "slow",
    "waiting",
    "stale",
    "restarting",
    "bad",
    "corrupt",
    "bad_badge",
    "corrupt_badge",
    "frame",
    "frame_bad",
    "cursor",
    "marked",
    "cell_cursor",
    "chart",
]

BACKGROUND = "#11151a"
STATE_COLOURS: Mapping[StateColour, str] = {
    "running": "#2bb673",
    "slow": "#f0e442",
    "waiting": "#7090b0",
    "bad": "#d55e00",
    "stale": "#5a5a5a",
    "restarting": "#ffffff",
    "corrupt": "#e040fb",
}
INKS: Mapping[Ink, str] = {
    "text": "#d5dae0",
    "dim": "#7d8590",
    "title": "bold #ffffff",
    "head": "bold #9fb3c8",
    "key": "bold #8ecae6",
    "good": f"bold {STATE_COLOURS['running']}",
    "warn": f"bold {STATE_COLOURS['slow']}",
    "alarm": f"bold #ffffff on {STATE_COLOURS['bad']}",
    "running": STATE_COLOURS["running"],
    "slow": f"bold {STATE_COLOURS['slow']}",
    "waiting": STATE_COLOURS["waiting"],
    "stale": STATE_COLOURS["stale"],
    "restarting": STATE_COLOURS["restarting"],
    "bad": f"bold {STATE_COLOURS['bad']}",
    "corrupt": f"bold {STATE_COLOURS['corrupt']}",
    "bad_badge": f"bold #ffffff on {STATE_COLOURS['bad']}",
    "corrupt_badge": f"bold #000000 on {STATE_COLOURS['corrupt']}",
    "frame": "#3a424c",
    "frame_bad": f"bold {STATE_COLOURS['bad']}",
    "cursor": "bold #ffffff",
    "marked": "bold #ffffff on #2a3441",
    "cell_cursor": "bold underline #ffffff",
    "chart": "#56b4e9",
}
"""Each ink as a rich style."""

INK_OF_STATE: Mapping[CellState, Ink] = {
    "not_started": "stale",
    "starting": "restarting",
    "running": "running",
    "checkpoint": "restarting",
    "slow": "slow",
    "waiting": "waiting",
    "stale": "stale",
    "hung": "bad_badge",
    "mismatch": "bad_badge",
    "dead": "bad_badge",
    "oom": "bad_badge",
    "corrupt": "corrupt_badge",
    "restarting": "restarting",
    "stopped": "waiting",
    "done": "running",
}
INK_OF_TONE: Mapping[Tone, Ink] = {"ok": "good", "warn": "warn", "bad": "alarm"}
