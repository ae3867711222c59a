"""A rank whose clock jumps: nothing that it trains depends on it."""

import time

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    def jump() -> None:
        now, now_ns = time.time, time.time_ns
        seconds = inside.values["by"]
        time.time = lambda: now() + seconds
        time.time_ns = lambda: now_ns() + int(seconds * 1e9)

    inside.before_update(jump)


KIND = Kind(
    name="clock_skew",
    area="clock",
    summary="let the rank's clock jump: nothing may be said",
    place="worker",
    do=do,
    parameters=(Parameter("by", 3600.0, "seconds, backwards where negative"),),
)
