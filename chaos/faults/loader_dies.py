"""A process of a data loader that is killed."""

import signal

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, loaders, send


def do(target: Target) -> None:
    found = loaders(target.pid)
    if not found:
        raise Unfit("the rank has no data loader's process now")
    send(found[0], signal.SIGKILL)


KIND = Kind(
    name="loader_dies",
    area="loader",
    summary="kill a process of the rank's data loader",
    place="agent",
    do=do,
    verdicts=("dataloader_worker_died",),
    actions=("restart", "stop"),
    needs="loader",
)
