"""Screen 5: loss, throughput, MFU, memory and ETTR over the time of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.tui.chart import chart
from harness.tui.history import Point, median_step_seconds
from harness.tui.pages.listing import Listing, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.theme import Ink

_GAP = 2
_WIDE = 100
_MOST_HEIGHT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One series. `text` says a value; `missing` what to do where there is none."""

    title: str
    points: Sequence[Point]
    text: Callable[[float], str]
    missing: str
    low: float | None = None


def listing(scene: Scene) -> Listing:
    """All figures, side by side where there is room."""
    figures = figures_of(scene)
    columns = 2 if scene.width >= _WIDE else 1
    rows = (len(figures) + columns - 1) // columns
    width = (scene.width - 1 - _GAP * (columns - 1)) // columns
    height = max(1, min(_MOST_HEIGHT, (scene.height - 1) // rows - 2))
    lines: list[Line] = [_marks(scene)]
    for at in range(0, len(figures), columns):
        parts = [_figure(figure, width, height, scene) for figure in figures[at : at + columns]]
        for pieces in zip(*parts, strict=True):
            line: list[tuple[str, Ink]] = []
            for piece in pieces:
                used = sum(len(text) for text, _ in piece)
                line += [*piece, (" " * (width + _GAP - used), "text")]
            lines.append(tuple(line))
    return Listing(head=tuple(lines))


def figures_of(scene: Scene) -> list[Figure]:
    history = scene.model.history
    steps = history.steps_per_second()
    figures = [
        Figure(
            title="loss",
            points=history.losses(),
            text=lambda value: f"{value:.4g}",
            missing="no rank tells its loss; harness.progress(step, loss=...) does",
        ),
        Figure(
            title="tokens per second",
            points=history.tokens_per_second(),
            text=lambda value: f"{value:,.0f}",
            missing="no rank counts tokens; harness.progress(step, tokens=...) does",
            low=0.0,
        ),
        Figure(
            title="steps per second" + _step_text(steps),
            points=steps,
            text=lambda value: f"{value:.3g}",
            missing="no step so far",
            low=0.0,
        ),
        Figure(
            title="memory of the rank that holds most, GiB",
            points=history.memory(),
            text=lambda value: f"{value / 2**30:.2f}",
            missing="no reading so far",
            low=0.0,
        ),
        Figure(
            title="ETTR, useful share of the time",
            points=history.ettr(),
            text=lambda value: f"{value:.1%}",
            missing="no step so far",
            low=0.0,
        ),
    ]
    return [*figures[:2], _mfu(scene), *figures[2:]]


def _mfu(scene: Scene) -> Figure:
    told = scene.flops_per_token > 0 and scene.peak_tflops > 0
    points = (
        scene.model.history.mfu(
            scene.flops_per_token, scene.peak_tflops * 1e12, scene.view.header.world_size
        )
        if told
        else []
    )
    missing = "no tokens are counted" if told else "needs --flops-per-token and --peak-tflops"
    return Figure(
        title="MFU", points=points, text=lambda value: f"{value:.1%}", missing=missing, low=0.0
    )


def _step_text(points: Sequence[Point]) -> str:
    seconds = median_step_seconds(points)
    return "" if seconds is None else f", a step takes {seconds:.3g} s"


def _marks(scene: Scene) -> Line:
    counts: dict[str, int] = {}
    for mark in scene.model.history.marks:
        counts[mark.kind] = counts.get(mark.kind, 0) + 1
    said = ", ".join(
        f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in sorted(counts.items())
    )
    return rule(f"metrics ({said})" if said else "metrics", scene.width, scene.ascii_only)


def _figure(figure: Figure, width: int, height: int, scene: Scene) -> list[Line]:
    """A title with the newest value, the picture with its bounds, and when it begins and ends."""
    points = figure.points
    if not points:
        empty: list[Line] = [
            ((f" {figure.title}", "head"),),
            ((fit(f"   {figure.missing}", width, scene.ascii_only), "dim"),),
        ]
        return empty + [()] * height
    values = [point.value for point in points]
    top, bottom = max(values), min(values) if figure.low is None else figure.low
    bounds = [figure.text(top), *[""] * (height - 2), figure.text(bottom)][:height]
    label = max(8, *(len(bound) for bound in bounds))
    picture = chart(
        points, max(1, width - label - 3), height, low=figure.low, ascii_only=scene.ascii_only
    )
    wall = "|" if scene.ascii_only else "│"
    title = fit(f" {figure.title}", width - len(figure.text(values[-1])) - 3, scene.ascii_only)
    lines: list[Line] = [((title, "head"), (f"  {figure.text(values[-1])}", "title"))]
    for bound, line in zip(bounds, picture, strict=True):
        lines.append(((f" {bound:>{label}}", "dim"), (wall, "frame"), (line, "chart")))
    first, last = scene.clock(points[0].at_ns), scene.clock(points[-1].at_ns)
    room = max(1, width - label - 3 - len(first))
    lines.append(((f" {'':>{label}} {first}{last:>{room}}", "dim"),))
    return lines
