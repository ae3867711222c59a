"""A loop that never ends and uses the CPU."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def spin() -> None:
        number = 0
        while number != 1:
            number //= 2

    inside.before_update(spin)


KIND = Kind(
    name="endless_loop",
    area="thread",
    summary="compute for ever",
    place="worker",
    do=do,
    verdicts=("rank_stuck_outside_collective",),
    actions=("stop",),
)
