"""A data loader's process that gets no shared memory any more."""

import resource

from harness.chaos.kinds import Kind, Undo, Unfit
from harness.chaos.outside import Target, loaders


def do(target: Target) -> Undo:
    found = loaders(target.pid)
    if not found:
        raise Unfit("the rank has no data loader's process now")
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in found}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))

    def back() -> None:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    return back


KIND = Kind(
    name="shm_full",
    area="resource",
    summary="let the rank's data loader find no room in shared memory",
    place="agent",
    do=do,
    verdicts=("exception", "dataloader_worker_died"),
    actions=("restart", "stop"),
    needs="loader",
)
