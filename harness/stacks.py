"""Stacks of many ranks on one screen: equal ones together, the odd one out first."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.events import EvidenceTaken
from harness.incidents import Where
from harness.sightings import ChildTaken, Frame, RankStack
from harness.topology import ranks_name

_PACKAGES = ("/site-packages/", "/dist-packages/")
_COMMUNICATION = "/torch/distributed/"
_IMPORTING = "<frozen importlib"
_WRAPPERS = ("wrapper", "_fn", "inner", "wrapped")
_SHOWN_FRAMES = 24
_SHOWN_CHILDREN = 4
_NAMED_GROUPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that stand at the same place. `members` are in the order of their ranks."""

    members: tuple[RankStack, ...]

    @property
    def ranks(self) -> list[int]:
        return [stack.rank for stack in self.members]

    @property
    def first(self) -> RankStack:
        return self.members[0]


def grouped(stacks: Sequence[RankStack]) -> list[Group]:
    """Small groups first; among equals those that wait for others last, the lowest rank first.

    Two stacks are equal when the user's lines are, and the library calls made from there: what
    line of a library a waiting loop is in says nothing.
    """
    found: dict[tuple[object, ...], list[RankStack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        found.setdefault(_key(stack), []).append(stack)
    groups = [Group(members=tuple(members)) for members in found.values()]
    return sorted(groups, key=lambda g: (len(g.members), bool(_waits_in(g.first)), g.ranks[0]))


def _key(stack: RankStack) -> tuple[object, ...]:
    at = _user_index(stack)
    inner = tuple((frame.file, frame.function) for frame in stack.frames[:at])
    return (inner, stack.frames[at:], "" if stack.frames else stack.missing, _condition(stack))


def _user_index(stack: RankStack) -> int:
    """Position of the user's innermost frame; that of none when there is none."""
    where = stack.user_frame
    for at, frame in enumerate(stack.frames):
        if where is not None and (frame.file, frame.line) == (where.file, where.line):
            return at
    return len(stack.frames)


def sentence(stacks: Sequence[RankStack]) -> str:
    """Where everybody is: the many first, then who is elsewhere."""
    groups = grouped(stacks)
    if not groups:
        return "no stacks"
    most = groups[-1]
    if len(groups) == 1:
        who = ranks_name(most.ranks) if len(most.members) == 1 else f"all {len(stacks)} ranks"
        return f"{who} {_doing(most)}"
    tie = len(groups[-2].members) == len(most.members)
    who = ranks_name(most.ranks) if tie else f"{len(most.members)} of {len(stacks)} ranks"
    parts = [f"{who} {_doing(most)}"]
    parts += [f"{ranks_name(group.ranks)} {_doing(group)}" for group in groups[:-1][:_NAMED_GROUPS]]
    left = sum(len(group.members) for group in groups[:-1][_NAMED_GROUPS:])
    if left:
        parts.append(f"{left} more elsewhere")
    return "; ".join(parts)


def _waits_in(stack: RankStack) -> str:
    return communication(stack.frames[: _user_index(stack)])


def _doing(group: Group) -> str:
    stack = group.first
    plural = len(group.members) > 1
    condition = _condition(stack)
    if condition == "gone":
        return "are gone" if plural else "is gone"
    if not stack.frames:
        return "cannot be seen"
    if condition == "stopped":
        verb = "stand stopped" if plural else "stands stopped"
        return f"{verb} at {_place(stack)}"
    operation = _waits_in(stack)
    if operation:
        return f"{'wait' if plural else 'waits'} in {operation} at {_place(stack)}"
    return f"{'are' if plural else 'is'} at {_place(stack)}"


def _condition(stack: RankStack) -> str:
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(stack.state, "")


def communication(frames: Sequence[Frame]) -> str:
    """The call into torch.distributed that `frames` (the user's callees) are in, if any."""
    for frame in reversed(frames):
        name = frame.function.rpartition(".")[2]
        if _COMMUNICATION in frame.file and name not in _WRAPPERS:
            return name
    return ""


def _place(stack: RankStack) -> str:
    where = stack.user_frame
    if where is not None:
        return f"{os.path.basename(where.file)}:{where.line} in {where.function}"
    frame = stack.frames[0]
    return f"{short_path(frame.file)}:{frame.line} in {frame.function}"


def short_path(path: str) -> str:
    """Without what all installed packages have in common."""
    for part in _PACKAGES:
        if part in path:
            return path.rpartition(part)[2]
    return path


def text(stacks: Sequence[RankStack]) -> str:
    """The whole screen, the sentence first."""
    lines = [sentence(stacks)]
    for group in grouped(stacks):
        lines += ["", *_group_lines(group)]
    return "\n".join(lines)


def _group_lines(group: Group) -> list[str]:
    stack = group.first
    names = ranks_name(group.ranks)
    one = f"pid {stack.pid}, " if len(group.members) == 1 else ""
    by = f"{one}by {stack.frames_by}" if stack.frames_by else one.rstrip(", ")
    condition = _condition(stack)
    head = ", ".join(filter(None, (names, condition)))
    lines = [f"{head} ({by})" if by else head]
    if not stack.frames:
        lines.append(f"    no stack: {stack.missing or 'nothing was seen'}")
    user = _user_index(stack)
    for at, frame in to_show(stack, _SHOWN_FRAMES):
        if frame is None:
            lines.append(f"    {gap_text(at)}")
            continue
        mark = ">" if at == user else " "
        lines.append(f"  {mark} {frame.function}  {short_path(frame.file)}:{frame.line}")
        if at < len(stack.variables):
            lines += [f"        {variable}" for variable in stack.variables[at]]
    return lines + _children_lines(group)


def to_show(stack: RankStack, most: int) -> list[tuple[int, Frame | None]]:
    """At most `most` frames, each with its position, and with None how many are left out there.

    Of a long stack it is the innermost ones; the user's own innermost frame and what is around it
    are always among them. Python's own steps of an import are left out.
    """
    frames: list[tuple[int, Frame | None]] = [
        (at, frame) for at, frame in enumerate(stack.frames) if not is_importing(frame)
    ]
    if len(frames) <= most:
        return frames
    user = _user_index(stack)
    first = next((place for place, (at, _) in enumerate(frames) if at == user), 0)
    begin = most if first < most else most // 2
    parts = frames[:begin]
    if begin < most:
        parts += [(first - begin, None)] if first > begin else []
        parts += frames[first : first + most - begin]
        begin = first + most - begin
    left = len(frames) - begin
    return [*parts, (left, None)] if left > 0 else parts


def is_importing(frame: Frame) -> bool:
    """Whether it is one of Python's own steps of an import, of which each import has five."""
    return frame.file.startswith(_IMPORTING)


def gap_text(count: int) -> str:
    """What stands for so many frames that are left out."""
    return f"... {count} more frame{'' if count == 1 else 's'}"


def _children_lines(group: Group) -> list[str]:
    children = [(stack.rank, child) for stack in group.members for child in stack.children]
    lines = [
        f"    child of rank {rank}: {child.name} (pid {child.pid}) {_child_place(child)}"
        for rank, child in children[:_SHOWN_CHILDREN]
    ]
    if len(children) > _SHOWN_CHILDREN:
        lines.append(f"    and {len(children) - _SHOWN_CHILDREN} more children")
    return lines


def _child_place(child: ChildTaken) -> str:
    if child.user_frame is not None:
        where = child.user_frame
        return f"at {short_path(where.file)}:{where.line} in {where.function}"
    if child.frames:
        frame = child.frames[0]
        return f"at {short_path(frame.file)}:{frame.line} in {frame.function}"
    return f"cannot be seen: {child.missing}"


def as_json(stacks: Sequence[RankStack]) -> dict[str, Any]:
    """`{"sentence", "groups": [{"ranks", "at", "frames"}], "ranks": [...]}`, odd one out first."""
    return {
        "sentence": sentence(stacks),
        "groups": [
            {
                "ranks": group.ranks,
                "at": _where_json(group.first.user_frame),
                "waits_in": _waits_in(group.first) or None,
                "frames": [_frame_json(frame) for frame in group.first.frames],
            }
            for group in grouped(stacks)
        ],
        "ranks": [
            {
                "rank": stack.rank,
                "pid": stack.pid,
                "state": stack.state,
                "by": stack.frames_by or None,
                "missing": stack.missing or None,
                "variables": [list(names) for names in stack.variables],
                "children": [
                    {
                        "pid": child.pid,
                        "name": child.name,
                        "at": _where_json(child.user_frame),
                        "frames": [_frame_json(frame) for frame in child.frames],
                        "missing": child.missing or None,
                    }
                    for child in stack.children
                ],
            }
            for stack in sorted(stacks, key=lambda stack: stack.rank)
        ],
    }


def _frame_json(frame: Frame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line, "function": frame.function}


def _where_json(where: Where | None) -> dict[str, Any] | None:
    if where is None:
        return None
    return {"file": where.file, "line": where.line, "function": where.function}


def of_evidence(taken: EvidenceTaken, pid: int) -> RankStack:
    """The stack that was kept as evidence of an incident."""
    reasons = [text for text in taken.missing if text.startswith("stack: ")]
    return RankStack(
        rank=taken.rank,
        pid=pid,
        state="Z" if taken.process is None else taken.process.state,
        frames=taken.frames,
        frames_by=taken.frames_by,
        user_frame=taken.user_frame,
        missing="; ".join(reason.removeprefix("stack: ") for reason in reasons),
        children=taken.children,
    )
