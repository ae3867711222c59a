"""Screen 3: where the ranks are, equal stacks together, the odd one out first."""

import textwrap

from harness import stacks
from harness.sightings import RankStack
from harness.topology import ranks_name
from harness.tui.cells import CULPRITS
from harness.tui.pages.listing import Listing, Row, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.theme import Ink
from harness.tui.wording import clean, frame_text

_SHOWN_FRAMES = 4
_SENTENCE_LINES = 2
_WRAPPERS = ("wrapper", "inner", "wrapped", "decorate_context")


def listing(scene: Scene) -> Listing:
    """One row a group of equal stacks; Enter shows the whole stack."""
    taken, at_ns, why = scene.model.stacks()
    chosen = scene.chosen()
    if chosen is not None:
        taken = [stack for stack in taken if stack.rank in chosen]
    if not taken:
        words = ("no stacks were taken so far; T takes them now", "dim")
        head = rule("stacks", scene.width, scene.ascii_only)
        return Listing(head=(head, ((f" {words[0]}", "dim"),)))
    title = f"stacks of {len(taken)} ranks, {scene.clock(at_ns)}, {clean(why)}"
    title = fit(title, scene.width - 6, scene.ascii_only)
    sentence = clean(stacks.sentence(taken))
    head_lines: list[Line] = [rule(title, scene.width, scene.ascii_only)]
    room = max(20, scene.width - 2)
    told = textwrap.wrap(sentence, room) or [""]
    if len(told) > _SENTENCE_LINES:
        rest = " ".join(told[_SENTENCE_LINES - 1 :])
        told = [*told[: _SENTENCE_LINES - 1], fit(rest, room, scene.ascii_only)]
    head_lines += [((f" {part}", "title"),) for part in told]
    head_lines.append(())
    groups = stacks.grouped(taken)
    largest = max(len(group.members) for group in groups)
    culprits = {cell.rank for cell in scene.view.cells if cell.state in CULPRITS}
    rows = []
    for group in groups:
        odd: Ink = "warn" if len(group.members) < largest else "head"
        rows.append(_row(group, scene, odd if culprits.isdisjoint(group.ranks) else "bad"))
    return Listing(head=tuple(head_lines), rows=tuple(rows))


def _row(group: stacks.Group, scene: Scene, ink: Ink) -> Row:
    first = group.first
    name = ranks_name(group.ranks)
    count = f" ({len(group.members)})" if len(group.members) > 1 else ""
    lines: list[Line] = [((fit(f" {name}{count}", scene.width - 2, scene.ascii_only), ink),)]
    lines += [_frame(frame, scene) for frame in _told(first)[:_SHOWN_FRAMES]]
    if not first.frames:
        lines.append(((f"   no stack: {clean(first.missing) or 'nothing was seen'}", "dim"),))
    return Row(
        key=tuple(group.ranks[:1]),
        lines=tuple(lines),
        rank=group.ranks[0],
        detail=lambda: [((f" {part}", "text"),) for part in _whole(group)],
    )


def _told(stack: RankStack) -> list[tuple[str, bool]]:
    """The frames to show, the user's own innermost one marked: it and two further out, and before
    it what it called."""
    where = stack.user_frame
    texts: list[tuple[str, bool]] = []
    user_at = 0
    for at, frame in enumerate(f for f in stack.frames if not stacks.is_importing(f)):
        mine = where is not None and (frame.file, frame.line) == (where.file, where.line)
        if mine and not any(marked for _, marked in texts):
            user_at = at
        texts.append((frame_text(frame), mine))
    begin = max(0, user_at - 1)
    while begin and texts[begin][0].split(" ")[0] in _WRAPPERS:
        begin -= 1
    return texts[begin : begin + 1] + texts[user_at:] if begin < user_at else texts[begin:]


def _frame(frame: tuple[str, bool], scene: Scene) -> Line:
    text, mine = frame
    mark = ">" if mine else " "
    ink: Ink = "text" if mine else "dim"
    return ((f"  {mark} {fit(text, scene.width - 6, scene.ascii_only)}", ink),)


def _whole(group: stacks.Group) -> list[str]:
    return [clean(line) for line in stacks.text(group.members).splitlines()]
