"""Files that are opened at every step and never closed."""

import os

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    def leak() -> None:
        for _ in range(inside.values["files"]):
            os.open(os.devnull, os.O_RDONLY)

    inside.every_step(leak)


KIND = Kind(
    name="fd_leak",
    area="resource",
    summary="open files at every step and close none",
    place="worker",
    do=do,
    verdicts=("resource_leak_fd",),
    also=("exception",),
    actions=("report",),
    parameters=(Parameter("files", 20, "each step"),),
    steps=400,
)
