"""The limit on open files is where the rank stands, and it opens one more."""

import os
import resource

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def run_out() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            os.open(os.devnull, os.O_RDONLY)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    inside.before_update(run_out)


KIND = Kind(
    name="files_exhausted",
    area="resource",
    summary="limit the number of open files and open one more",
    place="worker",
    do=do,
    verdicts=("exception", "resource_leak_fd"),
    actions=("restart",),
)
