"""An exception that nobody catches."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    def fail() -> None:
        raise RuntimeError(inside.values["message"])

    inside.before_update(fail)


KIND = Kind(
    name="exception",
    area="process",
    summary="raise an exception that nobody catches",
    place="worker",
    do=do,
    verdicts=("exception",),
    actions=("restart",),
    parameters=(Parameter("message", "a fault done on purpose", "what it says"),),
)
