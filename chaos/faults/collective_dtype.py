"""A tensor of another type than the other ranks have."""

from collections.abc import Callable
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def wider(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        tensors, *rest = args
        return original(group, [tensor.double() for tensor in tensors], *rest, **kwargs)

    inside.next_collective(wider, only=("allreduce", "broadcast"))


KIND = Kind(
    name="collective_dtype",
    area="collective",
    summary="pass float64 where the others pass another type to the next collective",
    place="worker",
    do=do,
    verdicts=("shape_mismatch",),
    actions=("stop",),
)
