"""What is known of the checkpoint files below one watched folder, and what is wrong with them.

Told of every change in its order, it looks at each file once it has come to rest and reads each
version of it once. It knows nothing of the kernel's watch or of the process that it runs in.
"""

import os
import stat
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from harness.agent import filecheck, filesets
from harness.agent.filesets import Flaw
from harness.agent.openfiles import open_for_writing
from harness.checkpointnames import (
    is_data,
    is_models,
    is_pointer,
    is_unfinished,
    may_be_ranks,
    part_of,
    series_of,
    step_of,
    unit_of,
)

QUIET_SECONDS = 0.5
"""After its last change a file is looked at."""
DOUBT_SECONDS = 2.0
"""A file that seems cut short is looked at again before anything is said."""
_EARLY_SECONDS = 60.0
_OLD_SECONDS = 60.0
_MOST_FILES = 100_000
_MOST_STEPS = 64
"""Newest steps whose parts are still waited for."""
_MOST_OLD = 64
"""Newest files of earlier runs whose outlines are looked at."""

Identity = tuple[int, int, int]
Place = tuple[str, str, tuple[int, int] | None]


@dataclass(slots=True, kw_only=True)
class Known:
    """A file at rest. `identity` is inode, size and time of its last change."""

    identity: Identity
    step: int | None
    said: tuple[str, int] | None = None
    said_before: int | None = None
    """What the version before said of itself."""
    digest: bytes = b""
    attempt: int = -1
    """In which it was written; -1: before this run."""


@dataclass(slots=True, kw_only=True)
class Pointed:
    """A pointer, what it points at, and when it was moved there."""

    pointer: str
    path: str
    step: int | None
    at: float
    changed_ns: int


class SavedFiles:
    """Files below `root`. `tell(flaw)` and `mended(path)` hear what is found and what has gone."""

    def __init__(
        self, root: str, tell: Callable[[Flaw], None], mended: Callable[[str], None]
    ) -> None:
        self.root = root
        self._tell, self._mended = tell, mended
        self._attempt = -1
        self._known: dict[str, Known] = {}
        self._due: dict[str, float] = {}
        """Files that have changed, and when they are looked at."""
        self._doubted: dict[str, Identity] = {}
        self._unread: dict[str, filecheck.Outline] = {}
        self._flaws: dict[str, Flaw] = {}
        self._pointed: dict[str, Pointed] = {}
        self._touched: dict[str, set[int]] = {}
        """Steps of which files were finished in this attempt, by folder."""
        self._newest: dict[Place, int] = {}
        """Newest step finished in this attempt."""
        self._worlds: dict[int, int] = {}
        self.elastic = False

    def begin(self, attempt: int, world_size: int) -> None:
        """Ranks of `attempt` begin to write; they may save again what earlier ones saved."""
        self._attempt = attempt
        self._worlds[attempt] = world_size
        self._touched.clear()
        self._newest.clear()
        self._pointed.clear()

    # --- changes -------------------------------------------------------------------------------

    def closed(self, path: str, now: float) -> None:
        """A writer has closed `path`, or it came here under this name."""
        name = os.path.basename(path)
        if self._outside(path) or is_unfinished(name):
            return
        if is_pointer(name):
            self._point(path, now)
        if is_data(name) and path not in self._known:
            self._too_late_for(path, now)
        self._unread.pop(path, None)
        self._due[path] = now + QUIET_SECONDS

    def went(self, path: str) -> None:
        """`path`, a file or a folder, is no longer there under this name."""
        below = path + os.sep
        for book in (self._known, self._due, self._unread, self._flaws, self._doubted):
            for gone in [known for known in book if known == path or known.startswith(below)]:
                if book is self._flaws:
                    self._mended(gone)
                del book[gone]

    def found(self, paths: list[str], now: float, wall: float, since: float) -> None:
        """Files that were there when the watch began. Those written after `since` are new; of the
        others the newest are looked at, and only from outside. All of these are wall clock, but
        `now`."""
        old: list[tuple[float, str]] = []
        for path in paths:
            try:
                changed = os.stat(path).st_mtime
            except OSError:
                continue
            if changed >= since:
                self.closed(path, now)
            elif not self._outside(path) and is_data(path) and not is_unfinished(path):
                old.append((changed, path))
        newest = sorted(old)[-_MOST_OLD:]
        rested = [path for changed, path in newest if changed < wall - _OLD_SECONDS]
        for path in rested:
            self._look_at_old(path)
        for folder in sorted({self._folder_of(path)[0] for path in rested}):
            shelf = filesets.survey(folder)
            if shelf and not self.elastic and all(p in rested for p in _paths(shelf[max(shelf)])):
                self._judge(folder, shelf, max(shelf), final=True)

    def _look_at_old(self, path: str) -> None:
        try:
            outline, identity = filecheck.outline(path), _identity(path)
        except OSError:
            return
        self._known[path] = Known(identity=identity, step=step_of(path), said=outline.step)
        if outline.problem and _judged(path, outline) and not open_for_writing(path):
            self._bad(path, outline)

    def _outside(self, path: str) -> bool:
        """Below a folder that does not count yet, or any more."""
        folders = os.path.relpath(path, self.root).split(os.sep)[:-1]
        return any(is_unfinished(folder) for folder in folders) or len(self._known) > _MOST_FILES

    # --- looking -------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def look(self, now: float) -> None:
        """At what has come to rest."""
        for path in [path for path, due in self._due.items() if due <= now]:
            del self._due[path]
            self._look_at(path, now, final=False)
        for pointed in list(self._pointed.values()):
            if now - pointed.at > DOUBT_SECONDS and self._absent(pointed):
                del self._pointed[pointed.pointer]

    def settle(self, now: float) -> None:
        """All ranks are gone: what is not whole now will never be."""
        for path in list(self._due):
            del self._due[path]
            self._look_at(path, now, final=True)
        for pointed in self._pointed.values():
            self._absent(pointed)
        for path in list(self._flaws):
            if not os.path.lexists(path):
                self.went(path)
        for folder, steps in list(self._touched.items()):
            shelf = filesets.survey(folder)
            for step in sorted(steps):
                self._judge(folder, shelf, step, final=True)
            self._unnumbered(folder, final=True)

    def _look_at(self, path: str, now: float, *, final: bool) -> None:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode) or os.path.islink(path):
                return
            identity = _identity(path)
            outline = filecheck.outline(path)
        except OSError:
            return  # gone again
        if not is_data(path) and not outline.spans and (not outline.problem or not outline.size):
            return
        if outline.problem:
            if not _judged(path, outline):
                return
            if open_for_writing(path):
                return  # it will be closed once more
            if not final and self._doubted.get(path) != identity:
                self._doubted[path] = identity
                self._due[path] = now + DOUBT_SECONDS
                return
            self._bad(path, outline)
            return
        self._whole(path, identity, outline)

    def _whole(self, path: str, identity: Identity, outline: filecheck.Outline) -> None:
        """By its outline."""
        self._doubted.pop(path, None)
        if path in self._flaws and self._flaws[path].kind in ("torn", "damaged"):
            del self._flaws[path]
            self._mended(path)
        before = self._known.get(path)
        if before is not None and before.identity == identity and before.digest:
            return  # opened for writing, and nothing was written
        folder, step = self._folder_of(path)
        said_before = None if before is None or before.said is None else before.said[1]
        if before is not None and before.said == outline.step:
            said_before = before.said_before
        self._known[path] = Known(
            identity=identity,
            step=step,
            said=outline.step,
            said_before=said_before,
            digest=b"" if before is None else before.digest,
            attempt=self._attempt if before is None else before.attempt,
        )
        self._unread[path] = outline
        touched = self._touched.setdefault(folder, set())
        newest = max(touched, default=-1)
        if step is not None:
            touched.add(step)
            touched -= set(sorted(touched)[:-_MOST_STEPS])
        if part_of(os.path.basename(path)) is not None:
            if step is not None and step > newest:
                shelf = filesets.survey(folder)
                for earlier in sorted(touched - {step}):
                    self._judge(folder, shelf, earlier, final=False)
            self._unnumbered(os.path.dirname(path), final=False)

    def _folder_of(self, path: str) -> tuple[str, int | None]:
        """Where the checkpoints lie that `path` is one of, and its step."""
        unit, step = unit_of(self.root, path)
        return os.path.dirname(unit), step

    def _place_of(self, path: str) -> Place:
        """What the same rank writes at other steps."""
        name = os.path.basename(path)
        return self._folder_of(path)[0], series_of(name), part_of(name)

    # --- reading -------------------------------------------------------------------------------

    def readings(self) -> Generator[int, None, None]:
        """Read what is unread, one file after the other; yields the bytes of each piece, 0 when
        there is nothing to read."""
        while True:
            if not self._unread:
                yield 0
                continue
            path = next(iter(self._unread))
            outline = self._unread.pop(path)
            known = self._known.get(path)
            if known is None:
                continue
            try:
                problem, digest = yield from filecheck.read(path, outline)
                same = _identity(path) == known.identity and self._known.get(path) is known
            except OSError:
                continue
            if same and path not in self._due:
                self._read(path, known, problem, digest)

    def _read(self, path: str, known: Known, problem: str, digest: bytes) -> None:
        if problem:
            self._bad(path, filecheck.Outline(problem=problem))
            return
        before, known.digest = known.digest, digest
        newest = self._newest.get(self._place_of(path), -1)
        name = os.path.basename(path)
        steps = not may_be_ranks(name, range(self._worlds.get(self._attempt, 0)))
        if before and before != digest and steps and known.step is not None and known.step < newest:
            why = (
                f"the bytes of {name} have changed since it was finished,"
                f" though step {newest} is there"
            )
            self._say(Flaw(kind="rewritten", path=path, why=why, step=known.step))
        known.attempt = self._attempt
        if known.step is not None:
            self._newest[self._place_of(path)] = max(newest, known.step)

    # --- what is wrong -------------------------------------------------------------------------

    def _say(self, flaw: Flaw) -> None:
        known = self._flaws.get(flaw.path)
        if known is None or known.kind != flaw.kind:
            self._flaws[flaw.path] = flaw
            self._tell(flaw)

    def _bad(self, path: str, outline: filecheck.Outline) -> None:
        self._known.pop(path, None)
        step = self._folder_of(path)[1]
        self._say(
            Flaw(
                kind="torn" if outline.torn else "damaged",
                path=path,
                why=f"{os.path.basename(path)} is not whole: {outline.problem}",
                step=step,
                aside=self._together(path),
            )
        )

    def _together(self, path: str) -> tuple[str, ...]:
        """What must be set aside with `path`, so that all ranks find the step before."""
        unit, step = unit_of(self.root, path)
        if unit != path:
            return (unit,)
        folder = os.path.dirname(path)
        if step is None:
            return (path,)
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        alike = [
            os.path.join(folder, name)
            for name in names
            if is_data(name) and not is_unfinished(name) and step_of(name) == step
        ]
        return tuple(dict.fromkeys([path, *alike]))

    def _judge(self, folder: str, shelf: filesets.Shelf, step: int, *, final: bool) -> None:
        """The sets of `step`."""
        flaw = filesets.missing(
            shelf, step, final=final, comparable=lambda s: self._comparable(shelf, s, step)
        )
        if flaw is not None:
            aside = self._together(flaw.path)
            if any(s < step for s in shelf):
                self._say(replace(flaw, aside=aside))
            else:
                self._say(flaw)
            return
        for found in shelf.get(step, {}).values():
            for path in found.parts.values():
                if path in self._flaws and self._flaws[path].kind == "incomplete":
                    del self._flaws[path]
                    self._mended(path)
            self._mixed(found.parts, final=final)

    def _comparable(self, shelf: filesets.Shelf, one: int, other: int) -> bool:
        """Whether as many ranks saved both."""
        worlds = set()
        for step in (one, other):
            for path in _paths(shelf[step]):
                known = self._known.get(path)
                attempt = -1 if known is None else known.attempt
                worlds.add(self._worlds.get(attempt, -1 if self.elastic else 0))
        return len(worlds - {0}) <= 1

    def _unnumbered(self, folder: str, *, final: bool) -> None:
        """Parts that are written over at each save."""
        series: dict[str, dict[int, str]] = {}
        for path, known in self._known.items():
            part = part_of(os.path.basename(path))
            if part is not None and known.step is None and os.path.dirname(path) == folder:
                name = series_of(os.path.basename(path))
                series.setdefault(name, {})[part[0]] = path
        for parts in series.values():
            self._mixed(parts, final=final)

    def _mixed(self, parts: dict[int, str], *, final: bool) -> None:
        ours = {
            part: path
            for part, path in parts.items()
            if path in self._known and (final or self._known[path].attempt == self._attempt)
        }
        flaw = filesets.mixed(
            ours,
            lambda path: self._known[path].said,
            lambda path: self._known[path].said_before,
            final=final,
        )
        if flaw is not None:
            self._say(flaw)

    # --- pointers ------------------------------------------------------------------------------

    def _point(self, path: str, now: float) -> None:
        said = filesets.target(path)
        if said is None:
            self._pointed.pop(path, None)
            return
        pointed, step = said
        self._pointed[path] = Pointed(
            pointer=path,
            path=os.path.normpath(pointed),
            step=step,
            at=now,
            changed_ns=_changed_ns(path),
        )

    def _absent(self, pointed: Pointed) -> bool:
        if not os.path.lexists(pointed.pointer):
            return True
        if not filesets.points_at_nothing(pointed.path, pointed.step):
            return False
        name = os.path.basename(pointed.pointer)
        why = f"{name} points at {os.path.basename(pointed.path)}, which is not there"
        self._say(Flaw(kind="early", path=pointed.pointer, why=why, step=pointed.step))
        return True

    def _too_late_for(self, path: str, now: float) -> None:
        """`path` has just been finished for the first time: is it of what a pointer points at?"""
        for pointed in list(self._pointed.values()):
            if now - pointed.at > _EARLY_SECONDS or path == pointed.pointer:
                continue
            inside = path == pointed.path or path.startswith(pointed.path + os.sep)
            same_folder = os.path.dirname(path) == os.path.dirname(pointed.path)
            same_step = pointed.step is not None and step_of(path) == pointed.step
            # Seen in its order, a pointer may still say by now what it was told later.
            changed_ns = max(_changed_ns(path), _changed_ns(pointed.path) if inside else 0)
            if (inside or (same_folder and same_step)) and changed_ns > pointed.changed_ns:
                name = os.path.basename(pointed.pointer)
                why = (
                    f"{name} was moved to {os.path.basename(pointed.path)} before"
                    f" {os.path.basename(path)} of it was written"
                )
                self._say(Flaw(kind="early", path=pointed.pointer, why=why, step=pointed.step))


def _judged(path: str, outline: filecheck.Outline) -> bool:
    """An empty file, or one in no known format, says only by its name whose it is."""
    return bool(outline.format) or is_models(path)


def _paths(sets: dict[str, filesets.Set]) -> list[str]:
    return [path for found in sets.values() for path in found.parts.values()]


def _changed_ns(path: str) -> int:
    """When it got its bytes or its name; 0 when it is gone."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def _identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
