"""From coordinates on the mesh to a rank, as the run itself has declared them."""

import dataclasses
from collections.abc import Mapping

from harness.chaos.plan import Planned
from harness.errors import FaultError
from harness.faults import Fault
from harness.state import RunState


def addressed(planned: Planned, state: RunState) -> Fault | None:
    """The fault with its rank, once it can be known. Raises UsageError when there is none."""
    if not planned.at:
        return planned.fault
    attempt = state.attempt
    if attempt is None or len(state.coordinates) < attempt.world_size:
        return None
    return dataclasses.replace(planned.fault, rank=rank_at(planned.at, state))


def rank_at(at: Mapping[str, int], state: RunState) -> int:
    """The one rank at these coordinates. `dp` also means all axes that begin with `dp_`, counted
    through in the mesh's order. Raises UsageError."""
    told = ", ".join(f"{axis}={value}" for axis, value in at.items())
    if not state.coordinates:
        raise FaultError(f"{told}: the run has declared no mesh", help="give --rank")
    places = {rank: _place(at, place, state) for rank, place in sorted(state.coordinates.items())}
    found = [
        rank
        for rank, place in places.items()
        if all(place[axis] == value for axis, value in at.items())
    ]
    if not found:
        raise FaultError(f"no rank is at {told}")
    if len(found) > 1:
        text = ", ".join(map(str, found))
        raise FaultError(f"{told} is not one rank: {text} are there", help="name more axes")
    return found[0]


def _place(at: Mapping[str, int], place: Mapping[str, int], state: RunState) -> dict[str, int]:
    """The rank's place on the axes of `at`."""
    sizes = {
        axis: 1 + max(each[axis] for each in state.coordinates.values() if axis in each)
        for axis in place
    }
    found = {}
    for axis in at:
        parts = [axis] if axis in place else [each for each in place if each.startswith(f"{axis}_")]
        if not parts:
            raise FaultError(f"the mesh has no axis {axis!r}", help=f"it has {', '.join(place)}")
        number = 0
        for part in parts:
            number = number * sizes[part] + place[part]
        found[axis] = number
    return found
