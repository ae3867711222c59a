"""The clock of a node's agent jumps, and with it all that it stamps."""

import time

from harness.chaos.kinds import Kind, Parameter, Undo
from harness.chaos.outside import Target


def do(target: Target) -> Undo:
    now, now_ns, seconds = time.time, time.time_ns, target.values["by"]
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)

    def back() -> None:
        time.time, time.time_ns = now, now_ns

    return back


KIND = Kind(
    name="clock_node",
    area="clock",
    summary="let the clock of a node's agent jump: nothing may be said",
    place="agent",
    do=do,
    on_node=True,
    parameters=(
        Parameter("by", 600.0, "seconds, backwards where negative"),
        Parameter("seconds", 2.0, "until it is right again; 0: to the end"),
    ),
)
