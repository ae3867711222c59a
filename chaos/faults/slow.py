"""A rank that computes longer than the others at every step."""

import time

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    inside.every_step(lambda: time.sleep(inside.values["milliseconds"] / 1000))


KIND = Kind(
    name="slow",
    area="thread",
    summary="be late at every step from now on",
    place="worker",
    do=do,
    verdicts=("straggler",),
    actions=("report",),
    parameters=(Parameter("milliseconds", 100.0, "how late, each step"),),
    steps=160,
    before=100,
    note="where the others have little to do, it is told only when nobody was late there before",
)
