"""The rank leaves, content with itself, while the others go on."""

import os

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    inside.before_update(lambda: os._exit(0))


KIND = Kind(
    name="exit_zero",
    area="process",
    summary="leave with exit code 0 while the others go on",
    place="worker",
    do=do,
    verdicts=("rank_exited_early",),
    actions=("stop",),
)
