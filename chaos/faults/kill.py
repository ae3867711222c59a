"""SIGKILL, as the kernel sends it when memory runs out."""

import signal

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    send(target.pid, signal.SIGKILL)


KIND = Kind(
    name="kill",
    area="process",
    summary="kill the rank with SIGKILL",
    place="agent",
    do=do,
    verdicts=("killed_by_signal",),
    actions=("restart",),
)
