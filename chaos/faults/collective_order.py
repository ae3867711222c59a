"""Two collectives in the other order than the other ranks call them."""

from collections.abc import Callable
from typing import Any

from harness.chaos.faults.collective_skip import Nothing
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    kept: list[Callable[[], Any]] = []

    def swap(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        if not kept:
            kept.append(lambda: original(group, *args, **kwargs))
            return Nothing()
        work = original(group, *args, **kwargs)
        if len(kept) == 1:
            work.wait()
            kept.append(lambda: None)
            kept[0]().wait()
        return work

    inside.next_collective(swap, every=True)


KIND = Kind(
    name="collective_order",
    area="collective",
    summary="call the next two collectives in the wrong order",
    place="worker",
    do=do,
    verdicts=("collective_mismatch", "shape_mismatch"),
    actions=("stop",),
    note="The two must differ in operation or size; otherwise only the numbers are exchanged.",
)
