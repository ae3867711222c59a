"""Checkpoints of several files: sets of which a part is missing, parts of different steps, and
pointers that were moved before what they point at was whole. Judged from names and from the steps
that files say of themselves."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.checkpointnames import (
    is_data,
    is_unfinished,
    part_of,
    said_step,
    series_of,
    step_of,
)

_MOST_ENTRIES = 20_000
_LARGEST_POINTER = 4096
_MOST_LIKE = 16


@dataclass(slots=True, kw_only=True)
class Set:
    """The parts of one step that belong together: number -> path."""

    parts: dict[int, str] = field(default_factory=dict)
    of: int = 0
    """How many there must be, where the names say so."""


Shelf = dict[int, dict[str, Set]]
"""Step -> what its sets have in common with those of other steps -> the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Something is wrong with files; `aside` must not be taken by who resumes."""

    kind: str
    path: str
    why: str
    step: int | None = None
    aside: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    """Files of those who should have written what is missing."""


def survey(folder: str) -> Shelf:
    """The numbered sets right in `folder`, and in its folders that are of one step."""
    shelf: Shelf = {}
    for entry in _entries(folder):
        if is_unfinished(entry.name):
            continue
        if entry.is_dir():
            step = said_step(entry.name)
            if step is None and entry.name.isdigit():
                step = int(entry.name[:18])
            if step is not None:
                _walk(shelf, step, entry.path, series_of(entry.name))
        elif (step := step_of(entry.name)) is not None:
            _put(shelf, step, entry.path, "")
    return shelf


def _walk(shelf: Shelf, step: int, folder: str, below: str) -> None:
    for entry in _entries(folder):
        if entry.is_dir() and not is_unfinished(entry.name):
            _walk(shelf, step, entry.path, f"{below}/{series_of(entry.name)}")
        elif said_step(entry.name) in (None, step):
            _put(shelf, step, entry.path, below)


def _put(shelf: Shelf, step: int, path: str, below: str) -> None:
    name = os.path.basename(path)
    part = part_of(name)
    if part is None or not is_data(name) or is_unfinished(name):
        return
    found = shelf.setdefault(step, {}).setdefault(f"{below}/{series_of(name)}", Set())
    found.parts[part[0]], found.of = path, max(found.of, part[1])


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return []


def missing(
    shelf: Shelf, step: int, *, final: bool, comparable: Callable[[int], bool]
) -> Flaw | None:
    """What the sets of `step` lack and will never get: nobody writes any more (`final`), or who
    should have written it has written a newer step. `comparable` steps were saved by as many."""
    for series, found in shelf.get(step, {}).items():
        older = [s for s in shelf if s < step and series in shelf[s] and comparable(s)]
        if found.of:
            first = 0 if 0 in found.parts else 1
            wanted = set(range(first, first + found.of))
        elif older:
            wanted = set(shelf[max(older)][series].parts)
        else:
            continue
        newer = [shelf[s][series].parts for s in shelf if s > step and series in shelf[s]]
        lost = sorted(
            part
            for part in wanted - found.parts.keys()
            if final or any(part in parts for parts in newer) or len(newer) > 1
        )
        if lost:
            some = min(found.parts.values())
            said = f" of {found.of}" if found.of else ""
            seen = "" if found.of else f", which step {max(older)} has"
            names = ", ".join(str(part) for part in lost[:8])
            why = (
                f"step {step} is there in part: {os.path.basename(some)} is, but not"
                f" part{'s' if len(lost) > 1 else ''} {names}{said} of it{seen}"
            )
            others = [shelf[s][series].parts for s in sorted(shelf) if series in shelf[s]]
            like = tuple(parts[part] for parts in others for part in lost if part in parts)
            return Flaw(kind="incomplete", path=some, why=why, step=step, like=like[-_MOST_LIKE:])
    return None


def mixed(
    found: Mapping[int, str],
    steps: Callable[[str], tuple[str, int] | None],
    before: Callable[[str], int | None],
    *,
    final: bool,
) -> Flaw | None:
    """Parts of one set that say different steps of themselves, while nobody writes (`final`), or
    one of them having been left out of a whole round."""
    said = {part: step for part, path in found.items() if (step := steps(path)) is not None}
    if len(said) < 2 or len({key for key, _ in said.values()}) > 1:
        return None
    newest = max(said, key=lambda part: said[part][1])
    oldest = min(said, key=lambda part: said[part][1])
    low, high = said[oldest][1], said[newest][1]
    last = before(found[newest])
    if low == high or not (final or (last is not None and low < last)):
        return None
    names = {part: os.path.basename(found[part]) for part in (newest, oldest)}
    return Flaw(
        kind="mixed",
        path=found[oldest],
        why=f"parts of one checkpoint are of different steps: {names[newest]} of {high},"
        f" {names[oldest]} of {low}",
        step=low,
    )


def target(path: str) -> tuple[str, int | None] | None:
    """What the pointer at `path` points at: a path, and the step it names; None when it is none,
    or says nothing that could be checked."""
    folder = os.path.dirname(path)
    try:
        if os.path.islink(path):
            said = os.readlink(path)
        elif 0 < os.path.getsize(path) <= _LARGEST_POINTER:
            with open(path, encoding="utf-8") as file:
                said = file.read().strip().strip("\"'")
        else:
            return None
    except (OSError, UnicodeDecodeError):
        return None
    if not said or "\n" in said or "\0" in said or said[0] in "{[":
        return None
    step = int(said) if said.isdigit() and len(said) <= 18 else step_of(os.path.basename(said))
    return os.path.join(folder, said), step


def points_at_nothing(pointed: str, step: int | None) -> bool:
    """Whether there is nothing of that name, with any suffix, and nothing of that step there."""
    folder, name = os.path.split(pointed)
    if os.path.lexists(pointed):
        return not os.path.exists(pointed)
    entries = [entry.name for entry in _entries(folder)]
    stems = {os.path.splitext(entry)[0] for entry in entries}
    if name in stems:
        return False
    if step is None:
        return is_data(name)  # else it may be any word
    numbered = {step_of(entry) for entry in entries if not is_unfinished(entry)}
    return step not in numbered and bool(numbered - {None})
