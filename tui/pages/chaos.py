"""Screen 7: every kind of harm that can be done on purpose, and what was done so far."""

from harness.faults import when, whom
from harness.tui.pages.listing import FaultKind, Listing, Row, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.wording import plural

_MOST_DONE = 5


def listing(scene: Scene) -> Listing:
    """What was done, then the kinds by area; Enter asks for one."""
    state = scene.model.state
    allowed = state.run is not None and state.run.chaos_allowed
    ready = allowed and scene.deeds and state.ended is None
    title = "faults: Enter injects one, you are asked first" if ready else "faults"
    lines: list[Line] = [rule(title, scene.width, scene.ascii_only)]
    if not allowed:
        text = "it was started without --chaos-allowed, so it takes no fault"
        lines.append(((fit(f" {text}", scene.width - 1, scene.ascii_only), "warn"),))
    lines += _done(scene)
    if not scene.kinds:
        return Listing(head=(*lines, ((" no kind is known here", "dim"),)))
    rows = []
    area = ""
    for kind in scene.kinds:
        rows.append(_row(kind, scene, kind.area if kind.area != area else ""))
        area = kind.area
    return Listing(head=tuple(lines), rows=tuple(rows))


def _done(scene: Scene) -> list[Line]:
    """The newest faults that were asked for, and those that have been done."""
    state = scene.model.state
    done = {id(each.fault) for each in state.faults}
    found: list[tuple[str, str]] = [
        (scene.clock(each.injected_ns), f"{each.fault.kind} of {whom(each.fault)}, done")
        for each in state.faults
    ]
    waiting = [each.fault for each in state.injects][len(state.faults) :]
    found += [
        ("asked   ", f"{fault.kind} of {whom(fault)}, due {when(fault)}")
        for fault in waiting
        if id(fault) not in done
    ]
    lines: list[Line] = [
        ((f" {at} ", "dim"), (fit(text, scene.width - 12, scene.ascii_only), "text"))
        for at, text in found[-_MOST_DONE:]
    ]
    if len(found) > _MOST_DONE:
        lines.append(((f" and {plural(len(found) - _MOST_DONE, 'other')} before", "dim"),))
    return lines


def _row(kind: FaultKind, scene: Scene, area: str) -> Row:
    name = f"{area:<11}{kind.name:<21}" if scene.width >= 70 else f"{kind.name:<21}"
    text = fit(kind.summary, scene.width - len(name) - 3, scene.ascii_only)
    split = len(name) - 21
    return Row(
        key=kind.name,
        lines=(((f" {name[:split]}", "dim"), (name[split:], "key"), (text, "text")),),
        detail=None,
    )


def about(kind: FaultKind, width: int, ascii_only: bool = False) -> list[Line]:
    """What stands under the line in which a fault is written."""
    rows = [
        ("done to", "a node" if kind.on_node else "a rank"),
        ("needs", kind.needs or "nothing"),
        ("must be said", kind.said),
    ]
    rows += [(f"--set {p.name}=", f"{p.help} [{p.default}]") for p in kind.parameters]
    if kind.note:
        rows.append(("note", kind.note))
    rows.append(("when", "now, or --step N, --seq-id N, --phase NAME, --seconds S"))
    lines: list[Line] = [((fit(f" {kind.summary}", width, ascii_only), "title"),)]
    return lines + [
        ((f" {left:<15}", "head"), (fit(right, width - 17, ascii_only), "text"))
        for left, right in rows
    ]
