"""Writes the program marks: optimizer steps, backward passes, training forwards of wrapped models.

Every mark costs some microseconds: a walk over a few frames, one question to each group, one
record. The hooks never raise, are silent in forked children and add no collective.
"""

import contextlib
import functools
import os
import sys
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

from harness.worker import marklog
from harness.worker.p2p import Recorder
from harness.worker.rhythm import Rhythm
from harness.worker.sites import SiteWriter

_MOST_FRAMES = 40
_CHAIN = 6
"""Frames of the user's that make one place of the program different from another."""
_MOST_PLACES = 256


class _Place:
    """One call chain that comes to one kind of mark."""

    def __init__(self, key: int, line: int, chain: list[FrameType]) -> None:
        self.codes = [frame.f_code for frame in chain]
        """Kept alive: the place is known by their ids, for to hash one takes microseconds."""
        self.key = key
        self.line = line
        self.count = 0
        self.rhythm = Rhythm()


class Marker:
    """The marks of this process."""

    def __init__(self, log: marklog.MarkWriter, sites: SiteWriter, recorder: Recorder) -> None:
        self._log = log
        self._sites = sites
        self._recorder = recorder
        self._places: dict[tuple[int, ...], _Place] = {}
        self.total = 0
        """Marks so far, of all kinds."""
        self.busy = False
        """Inside a backward pass or a wrapped forward, whose inner ones do not count."""

    @property
    def active(self) -> bool:
        return self._recorder.active

    def mark(self, kind: int, frame: FrameType | None) -> None:
        """The program has come to a mark below `frame`."""
        self.total += 1
        with contextlib.suppress(Exception):  # the user's program goes on without this mark
            self._mark(kind, frame)

    def _mark(self, kind: int, frame: FrameType | None) -> None:
        groups = self._recorder.positions(marklog.MOST_GROUPS)
        if not groups:
            return
        chain = self._users(frame)
        known = (kind, *[id(each.f_code) ^ each.f_lasti << 48 for each in chain])
        place = self._places.get(known)
        if place is None:
            if len(self._places) >= _MOST_PLACES or not chain:
                return
            place = self._places[known] = _Place(_key(chain), self._sites.line(chain[0]), chain)
        place.count += 1
        counters, name, value = place.rhythm.look(chain, place.count)
        where = (place.line, self._sites.text(name) if name else 0, value)
        self._log.put(kind, place.key, place.count, where, counters, groups)

    def _users(self, frame: FrameType | None) -> list[FrameType]:
        """The frames outside torch and Python, innermost first."""
        found: list[FrameType] = []
        framework, users = self._sites.framework, self._sites.users
        for _ in range(_MOST_FRAMES):
            if frame is None or len(found) == _CHAIN:
                break
            code = frame.f_code
            if id(code) not in framework and (
                id(code) in users or not self._sites.is_framework(code)
            ):
                found.append(frame)
            frame = frame.f_back
        return found


def _key(chain: list[FrameType]) -> int:
    """The same on all ranks, also where the program lies in different folders."""
    lines = [
        f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}:{frame.f_code.co_name}"
        for frame in chain
    ]
    return zlib.crc32("\n".join(lines).encode())


def _torch() -> Any:
    return sys.modules["torch"]


Find = Callable[[], Marker | None]
"""Gives the marker of this process."""


def watch_steps(module: Any, find: Find) -> None:
    """Hook for torch.optim.optimizer."""

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        marker = find()
        if marker is not None:
            marker.mark(marklog.STEP, sys._getframe(1))

    module.register_optimizer_step_post_hook(stepped)


def watch_backward(module: Any, find: Find) -> None:
    """Hook for torch.autograd, whose `backward` every `Tensor.backward` calls."""
    module.backward = _outermost(module.backward, marklog.BACKWARD, find, lambda args: True)


def watch_forward(module: Any, name: str, find: Find) -> None:
    """Hook for the module that has the wrapper class `name`: forwards that train."""

    def trains(args: tuple[Any, ...]) -> bool:
        return bool(_torch().is_grad_enabled() and args[0].training)

    wrapper = getattr(module, name)
    wrapper.forward = _outermost(wrapper.forward, marklog.FORWARD, find, trains)


def _outermost(
    original: Callable[..., Any],
    kind: int,
    find: Find,
    counts: Callable[[tuple[Any, ...]], bool],
) -> Callable[..., Any]:
    torch = _torch()  # may be half imported now; what is used of it is there when it is called

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        marker = find()
        if marker is None or marker.busy or not counts(args):
            return original(*args, **kwargs)
        marker.mark(kind, sys._getframe(1))
        marker.busy = True
        try:
            return original(*args, **kwargs)
        finally:
            marker.busy = False

    return marked
