"""A series as a small picture of blocks, several lines high. Pure.

Own code, because the two libraries for it cost more than the rest of the screen: textual-plotext
takes 24 ms for a redraw, textual-plot needs numpy and 12 ms; this takes less than one.
"""

from collections.abc import Sequence

from harness.tui.history import Point, thinned

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS = " ..::||##"


def chart(
    points: Sequence[Point], width: int, height: int, *, low: float | None = None,
    ascii_only: bool = False,
) -> list[str]:  # fmt: skip
    """`points` over time, `height` lines of `width` columns, the highest line first.

    The least value stands on the ground unless `low` says where that is. Empty without points.
    """
    values = thinned(points, width)
    known = [value for value in values if value is not None]
    if not known or height < 1:
        return []
    bottom = min(known) if low is None else low
    span = max(known) - bottom
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    steps = len(blocks) - 1
    heights = [_eighths(value, bottom, span, height * steps) for value in values]
    lines = []
    for line in reversed(range(height)):
        base = line * steps
        lines.append("".join(blocks[max(0, min(steps, tall - base))] for tall in heights))
    return lines


def _eighths(value: float | None, bottom: float, span: float, whole: int) -> int:
    """Never nothing where there is a value, so that zero differs from unknown."""
    if value is None:
        return 0
    if span <= 0:
        return max(1, whole // 2)
    return max(1, round((value - bottom) / span * whole))
