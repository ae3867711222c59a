"""The controller's clock: wall-clock nanoseconds that never jump.

Deadlines are compared with stamps, so both come from here. When somebody sets the machine's clock,
this one goes on as before: no deadline passes by it, and none moves away.
"""

import time

from harness.events import Stamp


class SteadyClock:
    """The wall clock as it was at the start, carried on by the monotonic one."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def follow(self, stamp: Stamp) -> None:
        """Go on from the newest stamp of an earlier controller on this machine."""
        if stamp.mono_ns <= time.monotonic_ns():
            self._base_ns = stamp.wall_ns - stamp.mono_ns
        else:  # the machine was started anew in between
            self._base_ns = max(self._base_ns, stamp.wall_ns - time.monotonic_ns())

    def now_ns(self) -> int:
        return self._base_ns + time.monotonic_ns()
