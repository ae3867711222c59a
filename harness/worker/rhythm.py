"""Variables of the user's program that go on by equal amounts from mark to mark, such as `step`.

They tell apart what counts alone cannot: a rank that left out a collective has come as far in its
loop as the others at the same count, one that made a backward pass more has not.

Reading must change nothing. The namespace of a module is a dictionary that is there anyway. That
of a function is a copy which Python before 3.13 keeps with the frame: it is emptied at once, so
that no tensor lives longer for it, and it is not asked for where the function itself may hold it.
"""

import contextlib
import sys
import zlib
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

_GIVE_UP = 64
"""Marks after which no more counters are looked for."""
_MOST = 3
"""Counters of one place; each frame that has one costs a microsecond."""
_LARGEST = 1 << 62
_ASKERS = frozenset({"locals", "vars", "eval", "exec"})
_OPTIMIZED = 0x1
_COPIES = sys.version_info < (3, 13)
_LIKELY = ("step", "iter", "batch", "epoch")


class Rhythm:
    """The counters seen at one place of the program."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, dict[tuple[int, str], int]]] = []
        self._tries = 0
        self.counters: list[tuple[int, str, int, int, int, int]] = []
        """Frame, name, hash of the name, step, and the value and count it was found at."""
        self._names: dict[int, list[str]] = {}

    def look(self, frames: Sequence[FrameType], count: int) -> tuple[list[int], str, int]:
        """(hash, drift) of each counter, one after the other; name and value of the first."""
        if not self.counters:
            if self._tries >= _GIVE_UP:
                return [], "", 0
            self._tries += 1
            self._learn(frames, count)
        found: list[int] = []
        first_name, first_value = "", 0
        values: dict[str, int] = {}
        read_at = -1
        for at, name, hashed, step, base, since in self.counters:
            if at != read_at:
                read_at = at
                values = _read(frames[at], self._names[at]) if at < len(frames) else {}
            value = values.get(name)
            if value is None:
                continue
            drift = value - base - step * (count - since)
            found += [hashed, max(-(1 << 31), min(drift, (1 << 31) - 1))]
            if not first_name:
                first_name, first_value = name, value
        return found, first_name, first_value

    def _learn(self, frames: Sequence[FrameType], count: int) -> None:
        now: dict[tuple[int, str], int] = {}
        for at, frame in enumerate(frames):
            for name, value in _read(frame, None).items():
                now[at, name] = value
        self._seen = [*self._seen[-2:], (count, now)]
        if len(self._seen) < 3:
            return
        (first, oldest), (second, older), _ = self._seen
        passed = count - second
        if passed != second - first:
            return
        steady = [
            (key, (value - older[key]) // passed)
            for key, value in now.items()
            if key in older
            and key in oldest
            and value - older[key] == older[key] - oldest[key]
            and value > older[key]
            and (value - older[key]) % passed == 0
        ]
        steady.sort(key=lambda item: (not _likely(item[0][1]), item[1] != 1, item[0]))
        self.counters = [
            (at, name, _hash(frames[at].f_code, name), step, now[at, name], count)
            for (at, name), step in steady[:_MOST]
        ]
        self.counters.sort(key=lambda counter: counter[0])
        for at, name, *_ in self.counters:
            self._names.setdefault(at, []).append(name)
        if self.counters:
            self._seen.clear()


def _likely(name: str) -> bool:
    return any(part in name.lower() for part in _LIKELY)


def _hash(code: CodeType, name: str) -> int:
    return zlib.crc32(f"{code.co_name}.{name}".encode())


def _read(frame: FrameType, names: Sequence[str] | None) -> dict[str, int]:
    """The integers of a frame, or those of them in `names`."""
    with namespace(frame) as space:
        if space is None:
            return {}
        if names is None:
            module = frame.f_code.co_name == "<module>"
            names = frame.f_code.co_names if module else tuple(space)
        return _integers(space, names)


def _asked_for(code: CodeType) -> bool:
    """Whether the copy may be in somebody's hands."""
    if not _COPIES:
        return False
    return sys.gettrace() is not None or not _ASKERS.isdisjoint(code.co_names)


@contextlib.contextmanager
def namespace(frame: FrameType) -> Iterator[Any]:
    """The variables of a frame by name, not to be changed and gone afterwards; None where even to
    read them would change something."""
    code = frame.f_code
    if code.co_name == "<module>":
        yield frame.f_globals
    elif not code.co_flags & _OPTIMIZED or _asked_for(code):
        yield None
    else:
        space: Any = frame.f_locals
        try:
            yield space
        finally:
            if _COPIES:
                space.clear()


def _integers(space: Any, names: Sequence[str]) -> dict[str, int]:
    found = {}
    for name in names:
        value = space.get(name)
        if type(value) is int and -_LARGEST < value < _LARGEST:
            found[name] = value
    return found
