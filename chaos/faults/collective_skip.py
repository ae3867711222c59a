"""A collective that one rank does not call."""

from collections.abc import Callable
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


class Nothing:
    """In place of the Work of an operation that was never begun."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def do(inside: Inside) -> None:
    def skip(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        return Nothing()

    inside.next_collective(skip)


KIND = Kind(
    name="collective_skip",
    area="collective",
    summary="leave out the next collective that Python calls",
    place="worker",
    do=do,
    verdicts=("collective_mismatch",),
    actions=("stop",),
)
