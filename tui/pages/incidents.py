"""Screen 6: what has happened, along the time of the run and one after the other."""

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo

from harness.topology import ranks_text
from harness.tui.pages.listing import Listing, Row, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.theme import Ink
from harness.tui.view import IncidentRow
from harness.tui.wording import duration_text

_INKS: Mapping[str, Ink] = {"attempt": "key", "fault": "warn", "incident": "bad"}
_MARKS = {"attempt": "|", "fault": "!", "incident": "X"}


def listing(scene: Scene) -> Listing:
    """Newest first; the ruler above shows when."""
    incidents = scene.view.incidents
    chosen = scene.chosen()
    shown = [row for row in incidents if chosen is None or not row.ranks or chosen & {*row.ranks}]
    title = f"incidents ({len(incidents)})"
    if len(shown) < len(incidents):
        title = f"incidents ({len(shown)} of {len(incidents)})"
    head = [rule(title, scene.width, scene.ascii_only), *_ruler(scene)]
    if not shown:
        word = "no incident so far" if not incidents else "no incident of these ranks"
        return Listing(head=(*head, ((f" {word}", "dim"),)))
    ids = [row.id for row in reversed(shown)]
    selected = scene.selected if scene.selected in ids else ids[0]
    rows = tuple(_row(row, scene, row.id == selected) for row in reversed(shown))
    return Listing(head=tuple(head), rows=rows)


def _row(row: IncidentRow, scene: Scene, selected: bool) -> Row:
    """Two lines; the selected one tells all."""
    lines = incident_lines([row], scene.width - 1, scene.zone, scene.ascii_only)
    if selected:
        told = whole(row, scene.width - 1, scene.zone, scene.ascii_only)
        lines = [lines[0], *told[2:], ()]
    return Row(
        key=row.id,
        lines=tuple(lines),
        rank=row.ranks[0] if row.ranks else None,
        detail=lambda: whole(row, scene.width, scene.zone, scene.ascii_only),
    )


def _ruler(scene: Scene) -> list[Line]:
    """The run from its start to now: attempts, faults done on purpose, incidents."""
    state = scene.model.state
    width = scene.width - 22
    if width < 20 or not state.started_ns:
        return []
    first, last = state.started_ns, max(scene.now_ns, state.started_ns + 1)
    marks = [" " if scene.ascii_only else "·"] * width
    inks: list[Ink] = ["frame"] * width
    for mark in scene.model.history.marks:
        at = max(0, min(width - 1, (mark.at_ns - first) * width // (last - first)))
        if marks[at] != "X":
            marks[at] = _MARKS[mark.kind]
            inks[at] = _INKS[mark.kind]
    pieces = [(text, ink) for text, ink in zip(marks, inks, strict=True)]
    took = duration_text((last - first) / 1e9)
    legend = " | attempt  X incident  ! fault injected"
    return [
        ((" 00:00:00 ", "dim"), *pieces, (f" {took}", "dim")),
        ((fit(legend, scene.width - 1, scene.ascii_only), "dim"),),
    ]


def incident_lines(
    rows: Sequence[IncidentRow], width: int, zone: tzinfo | None, ascii_only: bool = False
) -> list[Line]:
    """Newest first, two lines each: when and what, then the cause and how it went."""
    if not rows:
        return [((" no incident so far", "dim"),)]
    lines: list[Line] = []
    for row in reversed(rows):
        clock = datetime.fromtimestamp(row.detected_ns / 1e9, zone).strftime("%H:%M:%S")
        ink: Ink = "bad" if row.outcome in ("open", "failed") else "warn"
        if row.outcome == "recovered":
            ink = "good"
        head = f" {row.verdict} of {row.who}"
        lines.append(((f" {clock}", "dim"), (fit(head, width - 10, ascii_only), ink)))
        lines.append(((fit(f"   {row.fate}; {row.cause}", width - 1, ascii_only), "text"),))
    return lines


def whole(
    row: IncidentRow, width: int, zone: tzinfo | None, ascii_only: bool = False
) -> list[Line]:
    """All that the verdict says, wrapped."""
    lines: list[Line] = [incident_lines([row], width, zone, ascii_only)[0], ()]
    facts = [
        ("cause", row.cause),
        ("where", row.where),
        ("why", f"{row.reason} ({row.confidence})"),
        ("victims", f"ranks {ranks_text(row.victims)}" if row.victims else ""),
        ("when", f"attempt {row.attempt}, step {row.step}"),
        ("action", f"{row.action}: {row.action_reason}"),
        ("outcome", row.fate),
        ("evidence", f"incidents/{row.id:03d}/ in the run's folder"),
        ("more", f"harness explain {row.verdict}"),
    ]
    for name, text in facts:
        if text:
            lines += _wrapped(name, text, width)
    return lines


def _wrapped(name: str, text: str, width: int) -> list[Line]:
    parts = textwrap.wrap(text, max(20, width - 16)) or [""]
    first: Line = ((f"   {name:<9}", "head"), (parts[0], "text"))
    return [first, *(((" " * 12 + part, "text"),) for part in parts[1:])]
