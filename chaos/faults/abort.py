"""SIGABRT, as the C library sends it to a process that has noticed its own heap to be broken."""

import signal

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    send(target.pid, signal.SIGABRT)


KIND = Kind(
    name="abort",
    area="process",
    summary="end the rank with SIGABRT, core dump and all",
    place="agent",
    do=do,
    verdicts=("killed_by_signal",),
    actions=("restart",),
)
