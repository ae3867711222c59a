"""SIGSTOP: the process is there and does nothing any more."""

from harness.chaos.kinds import Kind, Undo
from harness.chaos.outside import Target, stop


def do(target: Target) -> Undo:
    return stop(target.pid)


KIND = Kind(
    name="stop",
    area="process",
    summary="stop the rank with SIGSTOP for good",
    place="agent",
    do=do,
    verdicts=("rank_frozen",),
    actions=("restart",),
)
