"""One bit of the optimizer's state, after an update."""

from harness.chaos.bits import BIT, WHICH, flip, tensors
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    inside.after_update(
        lambda: flip(inside, tensors(inside, lambda each, state: list(state.values())))
    )


KIND = Kind(
    name="flip_optimizer",
    area="tensor",
    summary="flip one bit of the optimizer's state after an update",
    place="worker",
    do=do,
    verdicts=("silent_data_corruption",),
    actions=("rollback", "restart"),
    parameters=(BIT, WHICH),
    needs="replicas",
    steps=24,
)
