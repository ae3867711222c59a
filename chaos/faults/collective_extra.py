"""A collective that one rank calls alone, between the gradients' reduction and the update."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def one_more() -> None:
        import torch
        import torch.distributed as dist

        dist.all_gather([torch.zeros(3) for _ in range(dist.get_world_size())], torch.zeros(3))

    inside.before_update(one_more)


KIND = Kind(
    name="collective_extra",
    area="collective",
    summary="call one more all_gather than the others",
    place="worker",
    do=do,
    verdicts=("collective_mismatch",),
    actions=("stop",),
)
