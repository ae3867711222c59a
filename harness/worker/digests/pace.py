"""How often a rank digests, so that it costs next to nothing and ranks still meet.

Counts that are looked at are multiples of a power of two. Each rank chooses the power by its own
clock; those that look more seldom look at counts that the others look at as well.
"""

import statistics
from collections.abc import Callable
from time import monotonic

_CAUTION = 0.8
"""Of what looks may cost, as it is measured late."""
_SPACING = ((30.0, 0.02), (300.0, 0.25), (float("inf"), 2.0))
"""Least seconds between two looks, by the time since the first: what is told is kept for ever."""
_REMEMBERED = 5
_LEAST = 3
_MOST_STRIDE = 1 << 20
_FEW_RANKS = 256
_GOLDEN = 0x9E3779B1
"""The golden ratio as a part of 2^32: its multiples fill a circle evenly, also those of counts that
have a divisor in common (Weyl, 1916)."""


def scattered(count: int, slices: int) -> int:
    """Which of `slices` things is done at `count`; the same on all ranks."""
    return (count * _GOLDEN & 0xFFFFFFFF) * slices >> 32


class Pace:
    """Of one thing that is counted from 1. A `share` of 1 or more: look at every chance."""

    def __init__(
        self, every: int, share: float, world_size: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._every = every
        self._share = share * _CAUTION
        self._spread = max(1.0, world_size / _FEW_RANKS)
        self._clock = clock
        self._begun = clock()
        self._power = 1
        self._costs: list[float] = []
        self._lengths: list[float] = []
        self._last: tuple[int, float] | None = None

    @property
    def every(self) -> int:
        """The least stride: all others are this times a power of two."""
        return self._every

    @property
    def stride(self) -> int:
        return self._every * self._power

    @property
    def unlimited(self) -> bool:
        """Whether looks may cost whatever they do."""
        return self._share >= _CAUTION

    def room(self, cost: float) -> float:
        """How many times `cost`, in seconds, a look may take at the present stride."""
        if self._share >= _CAUTION:
            return float("inf")
        if len(self._lengths) < _LEAST:
            return 1.0
        return self._share * statistics.median(self._lengths) * self.stride / max(cost, 1e-9)

    def due(self, count: int) -> bool:
        """Whether `count` is looked at. The first one is, or a fault of the start is seen late."""
        return count == 1 or count % self.stride == 0

    def looked(self, count: int, cost: float) -> None:
        """The look at `count` took `cost` seconds of this rank."""
        now = self._clock()
        if self._last is not None and count > self._last[0]:
            passed = now - self._last[1] - cost
            self._lengths = [*self._lengths, passed / (count - self._last[0])][-_REMEMBERED:]
            self._costs = [*self._costs, cost][-_REMEMBERED:]
        self._last = (count, now)
        if len(self._costs) >= _LEAST and self._share < _CAUTION:
            self._choose(now)

    def _choose(self, now: float) -> None:
        length = max(statistics.median(self._lengths), 1e-6)
        age = now - self._begun
        spacing = next(seconds for until, seconds in _SPACING if age < until) * self._spread
        least = max(statistics.median(self._costs) / self._share, spacing) / length / self._every
        power = 1
        while power < least and power < _MOST_STRIDE:
            power *= 2
        if power > self._power:
            self._power = power
            self._costs.clear()
            self._lengths.clear()
        elif power * 4 <= self._power:
            self._power //= 2
