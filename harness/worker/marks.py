"""Writes the program marks: optimizer steps, backward passes, training forwards of wrapped models.

A mark takes a walk over a few frames, a look at some variables, one question to each group and one
record: microseconds in a loop, up to 0.2 ms in a training step, whose tensors have driven all that
out of the caches. So in a program of short steps only every second, fourth, ... count is recorded,
by ranks on their own: the counts of a rank that records fewer are among those of one that records
more. Its forwards are left out as soon as backward passes are marked. The hooks never raise, are
silent in forked children and add no collective.
"""

import functools
import os
import sys
import zlib
from collections.abc import Callable
from time import monotonic
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
_SHORT_SECONDS = 0.02
"""Marks that come further apart on the mean are all recorded."""
_RECORD_SECONDS = 0.1
"""Least mean time between the records of others."""
_WINDOW = 64
"""Records over which that is measured; all of the first ones are made."""
_LONGEST_SECONDS = 30.0
"""Of such a window: steps may have become long."""
_MOST_SKIPPED = 63


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
        self._skipped = 0
        """Bits that are 0 in the counts that are recorded: one less than a power of two."""
        self._recorded = 0
        self._since = monotonic()
        self._backward = False
        """There are backward passes."""
        self._no_forwards = False
        """Forwards are no longer marked: of short steps the backward passes tell enough. For good,
        because their counts would be too low afterwards."""
        self.busy = False
        """Inside a backward pass or a wrapped forward, whose inner ones do not count."""

    @property
    def active(self) -> bool:
        return self._recorder.active

    def mark(self, kind: int, frame: FrameType | None) -> None:
        """The program has come to a mark below `frame`.

        What every mark needs is done in this one function: where the caches are cold, each Python
        function costs ten times what it does in a loop.
        """
        self.total += 1
        if self._no_forwards and kind == marklog.FORWARD:
            return
        try:
            chain: list[FrameType] = []  # those outside torch and Python, innermost first
            known: list[int] = [kind]
            framework, users = self._sites.framework, self._sites.users
            for _ in range(_MOST_FRAMES):
                if frame is None:
                    break
                code = frame.f_code
                key = id(code)
                if key not in framework and (key in users or not self._sites.is_framework(code)):
                    chain.append(frame)
                    known.append(key ^ frame.f_lasti << 48)
                    if len(chain) == _CHAIN or code.co_name == "<module>":
                        break
                frame = frame.f_back
            place = self._places.get(tuple(known))
            if place is None:
                if len(self._places) >= _MOST_PLACES or not chain or not self._recorder.shares:
                    return
                line = self._sites.line(chain[0])
                place = self._places[tuple(known)] = _Place(_key(chain), line, chain)
            place.count += 1
            if not place.count & self._skipped:
                self._record(kind, place, chain)
        except Exception:  # the user's program goes on without this mark
            return

    def _record(self, kind: int, place: _Place, chain: list[FrameType]) -> None:
        groups = self._recorder.positions(marklog.MOST_GROUPS)
        if not groups:
            return
        counters, name, value = place.rhythm.look(chain, place.count)
        where = (place.line, self._sites.text(name) if name else 0, value)
        self._log.put(kind, place.key, place.count, where, counters, groups)
        self._backward = self._backward or kind == marklog.BACKWARD
        self._recorded += 1
        now = monotonic()
        if self._recorded == _WINDOW or now - self._since > _LONGEST_SECONDS:
            self._keep_pace(now)

    def _keep_pace(self, now: float) -> None:
        """Record half as many counts, or twice as many, where records come too often or rarely."""
        pause = (now - self._since) / self._recorded
        self._since, self._recorded = now, 0
        short = pause / (self._skipped + 1) < _SHORT_SECONDS
        if short and pause < _RECORD_SECONDS and self._skipped < _MOST_SKIPPED:
            self._skipped = self._skipped << 1 | 1
            self._no_forwards = self._no_forwards or self._backward
        elif not short:
            self._skipped = 0
        elif pause > 4 * _RECORD_SECONDS:
            self._skipped >>= 1


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
    module.backward = _outermost(module.backward, marklog.BACKWARD, find)


def watch_forward(module: Any, name: str, find: Find) -> None:
    """Hook for the module that has the wrapper class `name`: forwards that train."""
    wrapper = getattr(module, name)
    wrapper.forward = _outermost(wrapper.forward, marklog.FORWARD, find)


def _outermost(original: Callable[..., Any], kind: int, find: Find) -> Callable[..., Any]:
    torch = _torch()  # may be half imported now; what is used of it is there when it is called
    forward = kind == marklog.FORWARD

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        marker = find()
        if marker is None or marker.busy:
            return original(*args, **kwargs)
        if forward and not (torch.is_grad_enabled() and args[0].training):
            return original(*args, **kwargs)
        marker.mark(kind, sys._getframe(1))
        marker.busy = True
        try:
            return original(*args, **kwargs)
        finally:
            marker.busy = False

    return marked
