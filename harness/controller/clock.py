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
        """Go on from the newest stamp of an earlier controller on this machine.

        Never back behind it, and not further on than either clock says: the wall clock may have
        been set forward in between, the monotonic one begins anew with the machine.
        """
        wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        passed_ns = mono_ns - stamp.mono_ns
        carried_ns = stamp.wall_ns + passed_ns if passed_ns >= 0 else wall_ns
        self._base_ns = max(stamp.wall_ns, min(carried_ns, wall_ns)) - mono_ns

    def now_ns(self) -> int:
        return self._base_ns + time.monotonic_ns()
