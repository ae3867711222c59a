"""A NaN in one rank's gradient after the reduction."""

from harness.chaos.bits import WHICH, tensors
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def spoil() -> None:
        import torch

        with torch.no_grad():
            for gradient in tensors(inside, lambda each, state: [each.grad])[:1]:
                gradient.view(-1)[0] = float("nan")

    inside.before_update(spoil)


KIND = Kind(
    name="not_a_number",
    area="tensor",
    summary="put a NaN into one reduced gradient before the update",
    place="worker",
    do=do,
    verdicts=("nonfinite", "silent_data_corruption"),
    also=("replica_divergence", "exception"),
    actions=("rollback", "restart", "stop", "report"),
    parameters=(WHICH,),
    steps=12,
    equal=False,
)
