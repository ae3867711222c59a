"""SIGSTOP and soon SIGCONT: what a snapshot of a virtual machine looks like. Nothing is wrong."""

from harness.chaos.kinds import Kind, Parameter, Undo
from harness.chaos.outside import Target, stop


def do(target: Target) -> Undo:
    return stop(target.pid)


KIND = Kind(
    name="pause",
    area="process",
    summary="stop the rank and let it go on soon: nothing may be said",
    place="agent",
    do=do,
    parameters=(Parameter("seconds", 1.0, "how long it stands still"),),
)
