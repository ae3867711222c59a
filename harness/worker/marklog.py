"""Program marks in shared memory: how far each group was when the program came to a place.

A ring of fixed records, written as the point-to-point log is. A mark is an optimizer step, a
backward pass or a training forward of a wrapped model, each counted by the call chain it came
from. Two ranks of a symmetric program have the same sequence numbers at the same count; a rank
that has left out a collective, or made one more, has not, even where nothing hangs.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import time_ns

CAPACITY = 512
MOST_GROUPS = 16
MOST_COUNTERS = 6
RECORD_BYTES = 224
HEAD_BYTES = 8
REGION_BYTES = HEAD_BYTES + CAPACITY * RECORD_BYTES
STEP, BACKWARD, FORWARD = 0, 1, 2
KINDS = ("step", "backward", "forward")
# serial, time_ns, count, value of a counter of the program, key of the call chain, its line and
# the counter's name in the table of texts, kind, counts of groups and counters, padding; counters
# (name, drift); groups (number in the group log, sequence number); padding, serial's low half
_RECORD = struct.Struct(f"=QqQqIHHBBBx{'Ii' * MOST_COUNTERS}{'II' * MOST_GROUPS}I")
_LOW = 0xFFFFFFFF
_PADDING = RECORD_BYTES - _RECORD.size
assert _PADDING >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`count` is of this `kind` and `key`, from 1. `key` names the call chain, alike on all ranks.

    `counters` are variables of the program that went on by equal amounts from mark to mark: a hash
    of the name, and how far the variable is from where that rhythm would have it. `value` and
    `name` (a number in the table of texts) are those of the clearest of them; name 0 for none.
    `groups` maps numbers in the group log to sequence numbers.
    """

    at_ns: int
    kind: int
    key: int
    count: int
    site: int
    name: int
    value: int
    counters: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int], ...]


class MarkWriter:
    """The worker's side; called by one thread at a time, or a record may get lost."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._serial = 0

    def put(
        self,
        kind: int,
        key: int,
        count: int,
        place: tuple[int, int, int],
        counters: Sequence[int],
        groups: Sequence[int],
    ) -> None:
        """`place` is (line, name, value); `counters` and `groups` are pairs, one after the other,
        no more than fit."""
        serial = self._serial + 1
        line, name, value = place
        at = self._start + HEAD_BYTES + serial % CAPACITY * RECORD_BYTES
        _RECORD.pack_into(
            self._memory, at, serial, time_ns(), count, value, key, line, name, kind,
            len(groups) // 2, len(counters) // 2, *counters,
            *_ZEROS[len(counters) : 2 * MOST_COUNTERS], *groups,
            *_ZEROS[len(groups) : 2 * MOST_GROUPS], serial & _LOW,
        )  # fmt: skip
        struct.pack_into("=Q", self._memory, self._start, serial)
        self._serial = serial


_ZEROS = (0,) * 2 * max(MOST_GROUPS, MOST_COUNTERS)


class MarkReader:
    """The agent's side: what is new since the last read."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._read = 0
        self.lost = 0
        """Records that were overwritten before they were read."""

    def new(self) -> list[Mark]:
        """Marks since the last call, oldest first."""
        (newest,) = struct.unpack_from("=Q", self._memory, self._start)
        if newest == self._read:
            return []
        first = max(self._read + 1, newest - CAPACITY + 2)
        self.lost += first - self._read - 1
        self._read = newest
        found: list[Mark] = []
        for serial in range(first, newest + 1):
            at = self._start + HEAD_BYTES + serial % CAPACITY * RECORD_BYTES
            fields = _RECORD.unpack_from(self._memory, at)
            again = struct.unpack_from("=Q", self._memory, at)[0]
            if fields[0] == again == serial and fields[-1] == serial & _LOW:
                found.append(_mark(fields))
            else:
                self.lost += 1
        return found


def _mark(fields: Sequence[int]) -> Mark:
    _, at_ns, count, value, key, line, name, kind, groups, counters, *rest = fields
    drifts, places = rest[: 2 * counters], rest[2 * MOST_COUNTERS :][: 2 * groups]
    return Mark(
        at_ns=at_ns,
        kind=kind,
        key=key,
        count=count,
        site=line,
        name=name,
        value=value,
        counters=tuple(zip(drifts[::2], drifts[1::2], strict=True)),
        groups=tuple(zip(places[::2], places[1::2], strict=True)),
    )
