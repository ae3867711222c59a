"""A C call that keeps the interpreter's lock: not even the heartbeat runs."""

import ctypes

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    inside.before_update(lambda: ctypes.PyDLL(None).sleep(86400))


KIND = Kind(
    name="gil_held",
    area="thread",
    summary="a C call that never gives the interpreter's lock back",
    place="worker",
    do=do,
    verdicts=("rank_stuck_outside_collective",),
    actions=("stop",),
)
