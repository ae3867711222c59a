"""How much time checks may take."""

from collections.abc import Callable
from time import perf_counter, process_time

_MOST_SECONDS = 0.05
"""Saved up at most: a check late in a step is as likely as an early one."""


class Busy:
    """A clock that goes as fast as the process works, and never faster than time: what checks cost
    is measured in processor time, of which a rank on a crowded machine gets less than passes."""

    def __init__(self) -> None:
        self._wall, self._work = perf_counter(), process_time()
        self._busy = 0.0

    def __call__(self) -> float:
        wall, work = perf_counter(), process_time()
        self._busy += max(0.0, min(wall - self._wall, work - self._work))
        self._wall, self._work = wall, work
        return self._busy


class Budget:
    """Earns `share` of the time that passes. A `share` of 1 or more: there is always enough."""

    def __init__(self, share: float, clock: Callable[[], float] | None = None) -> None:
        self._share = share
        self._clock = clock = clock or Busy()
        self._last = clock()
        self._credit = _MOST_SECONDS / 5

    @property
    def unlimited(self) -> bool:
        return self._share >= 1

    def left(self) -> bool:
        if self.unlimited:
            return True
        now = self._clock()
        self._credit = min(self._credit + (now - self._last) * self._share, _MOST_SECONDS)
        self._last = now
        return self._credit > 0

    def spent(self, seconds: float) -> None:
        self._credit -= seconds
