"""When to save by the clock, decided alike on all ranks without asking at every step.

Rank 0 looks at its clock at steps that all ranks know in advance, and tells the others whether to
save and at which step it looks next. It looks a few times between two saves; every other step costs
the comparison of two numbers.
"""

import os
import time
from collections.abc import Callable, Mapping

from harness.errors import UsageError

INTERVAL = "HARNESS_CHECKPOINT_INTERVAL"
"""Seconds between saves, which `harness run` tells the workers."""

_CLOSE = 0.125
"""Share of the interval that is left at the last look before a save."""
_GROWTH = 4
"""Steps to the next look, at most, by the steps that have been seen."""

Decision = tuple[bool, int]


def told_interval(environ: Mapping[str, str] | None = None) -> float:
    """Seconds between saves as told by the launcher; 0: nothing is told. Raises UsageError."""
    said = (os.environ if environ is None else environ).get(INTERVAL, "")
    if said in ("", "auto"):  # the setting of that name, in a program that Harness does not run
        return 0.0
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise UsageError(f"{INTERVAL}: {said!r} is not a number of seconds")
    return seconds


class Pace:
    """Saves `seconds` apart. `clock` is that of rank 0, in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next = -1
        self._saved = 0.0
        self._looked: tuple[int, float] | None = None
        self._steps = 0

    def due(self, step: int, from_first: Callable[[Decision], Decision]) -> bool:
        """Whether to save at `step`: the same on all ranks that ask for the same steps.
        `from_first` gives rank 0's value to every rank."""
        if step < self._next:
            return False
        save, self._next = from_first(self._look(step))
        return save

    def saved(self) -> None:
        """A save has begun, for whatever reason: the next one counts from now."""
        self._saved = self._clock()

    def _look(self, step: int) -> Decision:
        """Rank 0's decision, and when it looks again."""
        now = self._clock()
        if self._looked is None:
            self._looked, self._saved = (step, now), now
            return False, step + 1
        before, then = self._looked
        self._looked = (step, now)
        self._steps += step - before
        each = max((now - then) / max(step - before, 1), 1e-9)
        left = self._saved + self._seconds - now
        save = left <= each / 2  # closer to the due time than the next step would be
        if save:
            left = self._seconds
        ahead = left if left <= _CLOSE * self._seconds else left / 2
        steps = min(int(ahead / each), _GROWTH * self._steps)
        return save, step + max(1, steps)
