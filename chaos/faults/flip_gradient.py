"""One bit of one reduced gradient, just before the update that uses it."""

from harness.chaos.bits import BIT, WHICH, flip, tensors
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    inside.before_update(lambda: flip(inside, tensors(inside, lambda each, state: [each.grad])))


KIND = Kind(
    name="flip_gradient",
    area="tensor",
    summary="flip one bit of one reduced gradient before the update",
    place="worker",
    do=do,
    verdicts=("silent_data_corruption",),
    also=("replica_divergence",),
    actions=("rollback", "restart"),
    parameters=(BIT, WHICH),
    needs="replicas",
    steps=12,
)
