"""A rank that comes late to one collective: slow once, not stuck."""

import time
from collections.abc import Callable
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    def late(original: Callable[..., Any], group: Any, args: Any, kwargs: Any) -> Any:
        time.sleep(inside.values["late"])
        return original(group, *args, **kwargs)

    inside.next_collective(late)


KIND = Kind(
    name="collective_slow",
    area="collective",
    summary="come late to one collective: nothing may be said",
    place="worker",
    do=do,
    parameters=(Parameter("late", 1.0, "how late, in seconds"),),
)
