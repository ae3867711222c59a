"""A message that one rank waits for and nobody sends."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def wait() -> None:
        import torch
        import torch.distributed as dist

        peer = (inside.fault.rank + 1) % dist.get_world_size()
        dist.recv(torch.zeros(3), peer)

    inside.before_update(wait)


KIND = Kind(
    name="receive",
    area="collective",
    summary="wait for a message that the next rank never sends",
    place="worker",
    do=do,
    verdicts=("p2p_deadlock", "collective_mismatch"),
    actions=("stop",),
    blame="pair",
)
