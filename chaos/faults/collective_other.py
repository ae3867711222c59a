"""Another operation in the place of the one that the other ranks call."""

from collections.abc import Callable
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    def barrier(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        return group.barrier()

    inside.next_collective(barrier, only=("allreduce", "broadcast", "allgather", "reduce"))


KIND = Kind(
    name="collective_other",
    area="collective",
    summary="call a barrier where the others call the next collective",
    place="worker",
    do=do,
    verdicts=("collective_mismatch",),
    actions=("stop",),
)
