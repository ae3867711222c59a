"""A tensor of another size than the other ranks have."""

from collections.abc import Callable
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def longer(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        import torch

        tensors, *rest = args
        grown = [torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]]) for tensor in tensors]
        return original(group, grown, *rest, **kwargs)

    inside.next_collective(longer, only=("allreduce", "broadcast"))


KIND = Kind(
    name="collective_shape",
    area="collective",
    summary="pass one element more than the others to the next collective",
    place="worker",
    do=do,
    verdicts=("shape_mismatch",),
    actions=("stop",),
)
