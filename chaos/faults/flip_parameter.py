"""One bit of one parameter, after an update: memory that does not keep what was written."""

from harness.chaos.bits import BIT, WHICH, flip, tensors
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    inside.after_update(lambda: flip(inside, tensors(inside, lambda each, state: [each])))


KIND = Kind(
    name="flip_parameter",
    area="tensor",
    summary="flip one bit of one parameter after an update",
    place="worker",
    do=do,
    verdicts=("silent_data_corruption",),
    actions=("rollback", "restart"),
    parameters=(BIT, WHICH),
    needs="replicas",
    steps=12,
)
