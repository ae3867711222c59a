"""The limit on open files is where the rank stands, and it opens one too many."""

import os
import resource

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def run_out() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            while True:  # numbers that were given back below the limit are taken first
                os.open(os.devnull, os.O_RDONLY)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    inside.before_update(run_out)


KIND = Kind(
    name="files_exhausted",
    area="resource",
    summary="limit the number of open files and open one too many",
    place="worker",
    do=do,
    verdicts=("exception", "resource_leak_fd"),
    actions=("restart",),
)
