"""The address space ends where it is, and the rank asks for more."""

import resource
from pathlib import Path

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind

_ROOM = 64 << 20


def do(inside: Inside) -> None:
    def run_out() -> None:
        import torch

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, hard))
        try:
            torch.empty(4 * _ROOM, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))

    inside.before_update(run_out)


KIND = Kind(
    name="out_of_memory",
    area="process",
    summary="limit the address space and allocate beyond it",
    place="worker",
    do=do,
    verdicts=("out_of_memory",),
    actions=("restart", "stop"),
)
