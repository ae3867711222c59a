"""A read that nothing ever answers."""

import os

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def read() -> None:
        reader, _writer = os.pipe()
        os.read(reader, 1)

    inside.before_update(read)


KIND = Kind(
    name="blocked_io",
    area="thread",
    summary="wait for a read that is never answered",
    place="worker",
    do=do,
    verdicts=("rank_stuck_in_io",),
    actions=("restart",),
)
