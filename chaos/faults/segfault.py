"""A read from address 0 in the rank itself."""

import ctypes

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def read() -> None:
        ctypes.string_at(0)

    inside.before_update(read)


KIND = Kind(
    name="segfault",
    area="process",
    summary="read from address 0",
    place="worker",
    do=do,
    verdicts=("killed_by_signal",),
    actions=("restart",),
)
