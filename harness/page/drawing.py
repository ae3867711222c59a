"""Pictures as SVG text: loss curve, timeline, mesh. All text in them is escaped."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from harness.incidents import Incident
from harness.page.history import History
from harness.state import AttemptState, RunState
from harness.topology import coordinates_text, ranks_name

WIDTH = 960
_LEFT, _RIGHT = 70, 12
_LOSS_HEIGHT = 260
_LANE = 14
_CURVES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Of attempts, in turn: Okabe and Ito's colours, which the colour-blind tell apart."""
_FAILING = "#D55E00"
MOST_LANES = 64
_GLYPH_CELLS = 2048
"""With more ranks cells have no letters."""


def loss_curve(state: RunState, history: History) -> str:
    """Loss by step, one line an attempt; incidents and checkpoints marked. Empty without losses."""
    curves = {at: curve for at, curve in sorted(history.curves.items()) if curve.steps}
    if not curves:
        return ""
    losses = [loss for curve in curves.values() for loss in curve.losses]
    steps = [step for curve in curves.values() for step in curve.steps]
    x = _Axis(min(steps), max(steps), _LEFT, WIDTH - _RIGHT)
    y = _Axis(min(losses), max(losses), _LOSS_HEIGHT - 34, 14)
    parts = _grid(x, y)
    for mark in state.checkpoints.values():
        if mark.whole_ns and x.has(mark.step):
            at = x.at(mark.step)
            tip = f"checkpoint of step {mark.step}"
            parts.append(
                f'<path class="save" d="M{at:.1f} {_LOSS_HEIGHT - 34}v-7">{_tip(tip)}</path>'
            )
    for number, (attempt, curve) in enumerate(curves.items()):
        colour = _CURVES[number % len(_CURVES)]
        points = " ".join(
            f"{x.at(step):.1f},{y.at(loss):.1f}"
            for step, loss in zip(curve.steps, curve.losses, strict=True)
        )
        dash = "" if number < len(_CURVES) else ' stroke-dasharray="5 3"'
        parts.append(f'<polyline points="{points}" stroke="{colour}"{dash} class="curve"/>')
        last = (x.at(curve.steps[-1]), y.at(curve.losses[-1]))
        tip = f"attempt {attempt}: step {curve.steps[-1]}, loss {curve.losses[-1]:.6g}"
        parts.append(
            f'<circle cx="{last[0]:.1f}" cy="{last[1]:.1f}" r="3.5" fill="{colour}">'
            f"{_tip(tip)}</circle>"
        )
        at = _LEFT + 8 + 96 * (number % 8)
        parts.append(
            f'<text x="{at}" y="10" class="key" style="fill: {colour}">'
            f"&#9644; attempt {attempt}</text>"
        )
    for incident in state.incidents:
        step = incident.verdict.step
        if x.has(step):
            parts.append(_mark(x.at(step), 14, _LOSS_HEIGHT - 34, incident))
    return _svg(_LOSS_HEIGHT, parts)


def timeline(state: RunState, history: History) -> str:
    """Attempts, checkpoints and incidents over the time of the run; ranks where they are few."""
    end_ns = max(state.ended_ns or state.last_ns, state.started_ns + 1)
    seconds = (end_ns - state.started_ns) / 1e9
    x = _Axis(0, seconds, _LEFT, WIDTH - _RIGHT)
    ranks = _lanes(state, history)
    height = 30 + _LANE * (2 + len(ranks)) + 26
    lanes = 24
    parts: list[str] = []

    def at(ns: int) -> float:
        return x.at(min(max(0.0, (ns - state.started_ns) / 1e9), seconds))

    parts += [_lane_name("attempts", lanes), _lane_name("saves", lanes + _LANE)]
    for attempt in state.attempts:
        parts += _attempt_bars(attempt, at, lanes, _end_of(state, attempt, end_ns))
    for mark in state.checkpoints.values():
        if mark.whole_ns:
            tip = _tip(f"checkpoint of step {mark.step}, whole: {mark.path}")
            parts.append(
                f'<circle cx="{at(mark.whole_ns):.1f}" cy="{lanes + 1.5 * _LANE}" r="3" '
                f'class="saved">{tip}</circle>'
            )
    below = lanes + 2 * _LANE
    for number, rank in enumerate(ranks):
        parts.append(_lane_name(f"rank {rank}", below + number * _LANE))
    for life in history.lives.values():
        if life.rank not in ranks:
            continue
        top = below + ranks.index(life.rank) * _LANE
        attempt_end = _end_of(state, state.attempts[life.attempt], end_ns)
        begin, end = at(life.began_ns), at(life.ended_ns or attempt_end)
        how = "ran" if life.well else "ended with an error"
        tip = _tip(f"rank {life.rank}, attempt {life.attempt}: {how}")
        parts.append(_bar(begin, end, top, "life" if life.well else "life bad", tip))
        if not life.well:
            parts.append(_cross(end, top + _LANE / 2))
    for incident in state.incidents:
        onset = incident.verdict.onset_ns or incident.detected_ns
        parts.append(_mark(at(onset), 14, height - 26, incident))
    parts += _seconds_axis(x, height - 24)
    return _svg(height, parts)


def _lanes(state: RunState, history: History) -> list[int]:
    """The ranks that are drawn one by one: all of a small world, else those that failed first."""
    ranks = sorted({life.rank for life in history.lives.values()})
    if len(ranks) <= MOST_LANES:
        return ranks
    failed = {rank for each in state.incidents for rank in each.verdict.first_failing}
    return [rank for rank in ranks if rank in failed][:MOST_LANES]


def _attempt_bars(
    attempt: AttemptState, at: Callable[[int], float], top: float, end_ns: int
) -> list[str]:
    """Start, steps, and from the first sign of trouble to the last process gone."""
    first = attempt.first_step_ns or attempt.trouble_ns or end_ns
    trouble = attempt.trouble_ns or attempt.stop_ordered_ns or end_ns
    spans = (
        ("starting", attempt.started_ns, min(first, trouble)),
        ("stepping", first, trouble),
        ("failing", trouble, end_ns),
    )
    return [
        _bar(at(begin), at(end), top, name, _tip(f"attempt {attempt.index}, {name}: {attempt.why}"))
        for name, begin, end in spans
        if end > begin
    ]


def _end_of(state: RunState, attempt: AttemptState, end_ns: int) -> int:
    following = attempt.index + 1
    until = end_ns if following >= len(state.attempts) else state.attempts[following].started_ns
    return min(attempt.stopped_ns or until, until)


def mesh(state: RunState, incident: Incident) -> str:
    """The ranks of the incident's attempt by their coordinates: who failed, who waited."""
    verdict = incident.verdict
    attempt = state.attempts[verdict.attempt]
    kinds: dict[int, tuple[str, str]] = {}
    kinds.update(dict.fromkeys(verdict.innocent, ("other", ".")))
    kinds.update(dict.fromkeys(verdict.victims, ("victim", "w")))
    kinds.update(dict.fromkeys(verdict.first_failing, ("first", "X")))
    ranks = sorted(attempt.ranks)
    columns = _columns(state, len(ranks))
    size = 22 if len(ranks) <= 512 else 12 if len(ranks) <= _GLYPH_CELLS else 6
    per_row = max(1, min(columns, (WIDTH - 170) // size))
    parts = []
    for place, rank in enumerate(ranks):
        row, column = divmod(place, per_row)
        kind, glyph = kinds.get(rank, ("other", "."))
        left, top = 150 + column * size, 4 + row * size
        coordinates = coordinates_text(state.coordinates.get(rank, {}))
        step = attempt.ranks[rank].step
        words = {"first": "failed first", "victim": "waited for it or died of it", "other": "well"}
        tip = f"rank {rank}{f' ({coordinates})' if coordinates else ''}, step {step}: {words[kind]}"
        inner = size - 2
        cell = f'<rect x="{left}" y="{top}" width="{inner}" height="{inner}" class="cell {kind}"/>'
        if len(ranks) <= _GLYPH_CELLS:
            middle = left + inner / 2
            cell += (
                f'<text x="{middle}" y="{top + inner / 2 + size * 0.2:.1f}" '
                f'class="glyph {kind}" font-size="{size * 0.55:.0f}">{glyph}</text>'
            )
        parts.append(f"<g>{_tip(tip)}{cell}</g>")
        if column == 0 and size >= 12:
            name = _row_name(state, rank, coordinates)
            parts.append(f'<text x="144" y="{top + size * 0.65:.1f}" class="lane">{name}</text>')
    rows = math.ceil(len(ranks) / per_row)
    return _svg(8 + rows * size, parts)


def _columns(state: RunState, ranks: int) -> int:
    """All axes but the first in one row, as far as that is a rectangle."""
    if state.mesh is None or math.prod(state.mesh.sizes) != ranks:
        return min(32, ranks)
    sizes = [size for size in state.mesh.sizes if size > 1] or [1]
    return math.prod(sizes[1:]) if len(sizes) > 1 else min(32, sizes[0])


def _row_name(state: RunState, rank: int, coordinates: str) -> str:
    if not coordinates or state.mesh is None:
        return escape(f"rank {rank}")
    wide = [name for name, size in zip(state.mesh.names, state.mesh.sizes, strict=True) if size > 1]
    place = state.coordinates.get(rank, {})
    first = wide[0] if wide else ""
    return escape(f"{first}{place.get(first, '')}  rank {rank}" if first else f"rank {rank}")


# --- pieces ------------------------------------------------------------------------------------


class _Axis:
    """From a range of values to a range of pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high = low, high if high > low else low + 1
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, most: int) -> list[float]:
        """Round values, at most `most` of them."""
        raw = (self.high - self.low) / max(1, most)
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self.low / step)
        count = int((self.high - first * step) / step + 1e-9) + 1
        return [round((first + at) * step, 10) for at in range(count)]


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for value in y.ticks(5):
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="lane">{value:g}</text>')
    for value in x.ticks(10):
        if value == int(value):
            at = x.at(value)
            parts.append(
                f'<text x="{at:.1f}" y="{_LOSS_HEIGHT - 18}" class="tick">{value:g}</text>'
            )
    middle = (_LEFT + WIDTH) / 2
    parts.append(f'<text x="{middle}" y="{_LOSS_HEIGHT - 3}" class="tick">step</text>')
    return parts


def _seconds_axis(x: _Axis, top: float) -> list[str]:
    parts = [f'<path class="grid" d="M{_LEFT} {top}H{WIDTH - _RIGHT}"/>']
    for value in x.ticks(10):
        parts.append(
            f'<text x="{x.at(value):.1f}" y="{top + 14}" class="tick">{_time(value)}</text>'
        )
    return parts


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def _mark(x: float, top: float, bottom: float, incident: Incident) -> str:
    verdict = incident.verdict
    who = ranks_name(verdict.first_failing) if verdict.first_failing else "the run"
    tip = f"incident {incident.id}: {verdict.verdict} of {who}"
    side, anchor = (3, "start") if x < WIDTH - 40 else (-3, "end")
    return (
        f'<g>{_tip(tip)}<path class="incident" d="M{x:.1f} {top}V{bottom}"/>'
        f'<text x="{x + side:.1f}" y="{top + 8}" class="incident" text-anchor="{anchor}">'
        f"#{incident.id}</text></g>"
    )


def _bar(begin: float, end: float, top: float, kind: str, tip: str) -> str:
    return (
        f'<rect x="{begin:.1f}" y="{top + 2}" width="{max(1.0, end - begin):.1f}" '
        f'height="{_LANE - 4}" class="{kind}">{tip}</rect>'
    )


def _cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8" stroke="{_FAILING}"/>'


def _lane_name(name: str, top: float) -> str:
    return f'<text x="{_LEFT - 6}" y="{top + _LANE - 4}" class="lane">{escape(name)}</text>'


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(height: float, parts: Iterable[str] | Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


LEGEND: Mapping[str, str] = {"first": "failed first", "victim": "waited for it", "other": "well"}
