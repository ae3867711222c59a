"""How much time checks may take."""

from collections.abc import Callable
from time import perf_counter

_MOST_SECONDS = 0.05
"""Saved up at most: a check late in a step is as likely as an early one."""


class Budget:
    """Earns `share` of the time that passes. A `share` of 1 or more: there is always enough."""

    def __init__(self, share: float, clock: Callable[[], float] = perf_counter) -> None:
        self._share = share
        self._clock = clock
        self._last = clock()
        self._credit = _MOST_SECONDS / 5

    def left(self) -> bool:
        if self._share >= 1:
            return True
        now = self._clock()
        self._credit = min(self._credit + (now - self._last) * self._share, _MOST_SECONDS)
        self._last = now
        return self._credit > 0

    def spent(self, seconds: float) -> None:
        self._credit -= seconds
