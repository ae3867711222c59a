"""SIGKILL to the process that forks the ranks, and to a rank: the restart finds another way."""

import signal

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    if not target.zygote:
        raise Unfit("the ranks of this node are started as fresh processes")
    send(target.zygote, signal.SIGKILL)
    send(target.pid, signal.SIGKILL)


KIND = Kind(
    name="zygote_kill",
    area="process",
    summary="kill the process that forks the ranks, and the rank",
    place="agent",
    do=do,
    verdicts=("killed_by_signal",),
    actions=("restart",),
)
