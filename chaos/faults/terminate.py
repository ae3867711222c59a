"""SIGTERM to one rank alone, as a careless script or another tenant's scheduler sends it."""

import signal

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    send(target.pid, signal.SIGTERM)


KIND = Kind(
    name="terminate",
    area="process",
    summary="end the rank with SIGTERM that nobody of the run has sent",
    place="agent",
    do=do,
    verdicts=("killed_by_signal",),
    actions=("restart",),
)
