"""Aborts on mismatched sizes: what came and what there was room for, against the pieces in which
Gloo passes on what a rank called."""

import math
from dataclasses import dataclass

from harness.diagnosis.mismatch.meetings import Meeting
from harness.diagnosis.scene import Scene
from harness.diagnosis.texts import came_and_room, is_size_abort
from harness.diagnosis.waits.record import Call

_SEGMENT = 1 << 20
"""Bytes of the largest piece of an all-reduce."""
_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "short": 2, "half": 2,
    "bfloat16": 2, "uint16": 2, "int": 4, "float": 4, "uint32": 4, "long": 8, "double": 8,
    "uint64": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Of an element, by the names of types that flight records have."""
_NEAR = 1.5
"""Where the pieces are not known, two ratios of sizes this close are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """`rank` aborted as `came` bytes came for an operation with room for `room`; both 0 where its
    text does not tell."""

    rank: int
    came: int
    room: int

    def had_room_for(self, call: Call, members: int) -> bool | None:
        """Whether it had called `call` itself; None where that cannot be said, as where both what
        came and what there was room for are pieces of it."""
        known = pieces(call, members)
        if not known or not self.room or {self.came, self.room} <= known:
            return None
        return self.room in known

    def was_sent(self, call: Call, members: int) -> bool:
        """Whether what came can be a piece of `call`."""
        return self.came in pieces(call, members)

    def ran_ahead(self, call: Call, following: Call, members: int) -> bool:
        """Whether it had room for `following` where `call` came."""
        if self.had_room_for(following, members) is not None:
            return self.room in pieces(following, members)
        here, there = _bytes(call), _bytes(following)
        if not here or not there or not self.room:
            return False
        return 1 / _NEAR < here / there / (self.came / self.room) < _NEAR


def aborts_of(scene: Scene) -> dict[int, Abort]:
    """Ranks that Gloo aborted since more bytes came than they had room for."""
    found = {}
    for ending in scene.of_kind("signal", "cried"):
        if ending.what == "SIGABRT" and is_size_abort(ending.text):
            came, room = came_and_room(ending.text) or (0, 0)
            found[ending.rank] = Abort(rank=ending.rank, came=came, room=room)
    return found


def pieces(call: Call, members: int) -> frozenset[int]:
    """Bytes of the messages of `call` in a group of `members`; empty where that is not known.

    All-reduce and reduce as in gloo/allreduce.cc: a ring of equal segments of whole elements, two
    or more a rank, the last ones cut short. All-gather (gloo/allgather.cc) passes on each rank's
    part in two halves, a broadcast the whole tensor.
    """
    total, element = _bytes(call), _element(call)
    if not total:
        return frozenset()
    if call.op == "broadcast":
        return frozenset({total})
    if call.op in ("all_gather", "allgather", "_allgather_base"):
        return frozenset({total // 2, total - total // 2})
    if call.op not in ("all_reduce", "allreduce", "reduce"):
        return frozenset()
    largest = element * max(1, _SEGMENT // element)
    count = max(math.ceil(total / largest), 2 * members)
    count = math.ceil(count / members) * members
    segment = math.ceil(math.ceil(total / count) / element) * element
    rest = total % segment
    return frozenset({segment, rest} if rest else {segment})


def _bytes(call: Call) -> int:
    return sum(math.prod(shape) for shape in call.sizes) * _element(call)


def _element(call: Call) -> int:
    kinds = {_BYTES.get(kind.lower(), 0) for kind in call.dtypes}
    return kinds.pop() if len(kinds) == 1 else 0


def voters(aborts: dict[int, Abort], meeting: Meeting) -> dict[int, Call]:
    """What aborted ranks without a record had called at `meeting`, by the room they had."""
    size, found = len(meeting.members), {}
    calls = set(meeting.calls.values())
    for rank in meeting.missing & aborts.keys():
        fitting = [call for call in calls if aborts[rank].had_room_for(call, size)]
        if len(fitting) == 1:
            found[rank] = fitting[0]
    return found
