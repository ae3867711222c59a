"""A lock that the thread itself holds already."""

import threading

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def lock_twice() -> None:
        lock = threading.Lock()
        with lock:
            lock.acquire()

    inside.before_update(lock_twice)


KIND = Kind(
    name="deadlock",
    area="thread",
    summary="take a lock twice",
    place="worker",
    do=do,
    verdicts=("rank_stuck_outside_collective",),
    actions=("stop",),
)
