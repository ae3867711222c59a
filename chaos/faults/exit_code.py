"""The rank leaves with an error code and says nothing."""

import os

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    inside.before_update(lambda: os._exit(inside.values["code"]))


KIND = Kind(
    name="exit_code",
    area="process",
    summary="leave with an exit code and without a word",
    place="worker",
    do=do,
    verdicts=("exception",),
    actions=("restart",),
    parameters=(Parameter("code", 17, "the exit code"),),
)
