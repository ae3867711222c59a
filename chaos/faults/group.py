"""A process group that one rank makes and the others do not."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def make() -> None:
        import torch.distributed as dist

        dist.new_group(list(range(dist.get_world_size())))

    inside.before_update(make)


KIND = Kind(
    name="group",
    area="collective",
    summary="make a process group that nobody else makes",
    place="worker",
    do=do,
    verdicts=("group_mismatch",),
    actions=("stop",),
)
