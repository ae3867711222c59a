"""Point-to-point operations, in shared memory: what was posted, what is waited for, what is done.

A ring of fixed records behind the group log (`harness.worker.grouplog` tells how and why). The
writer is called for every send and receive, so it does next to nothing, and it keeps numbers only:
no tensor and no Work lives longer for its sake.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from time import time_ns

from harness.collectives import GroupCreation, PointToPoint

CAPACITY = 4096
RECORD_BYTES = 64
REGION_BYTES = CAPACITY * RECORD_BYTES
# serial, begun_ns, number, tag, peer, group's number in the group log, four sizes, direction,
# dtype, count of sizes, state, ended_ns, serial again (its low half): a record is whole when both
# serials agree
RECORD = struct.Struct("=QqIiiI4IBBBBqI")
END = struct.Struct("=Bq")
STATE_AT = 51
_LOW = 0xFFFFFFFF
assert RECORD.size == RECORD_BYTES
SEND, RECV = 0, 1
DIRECTIONS = ("send", "recv")
POSTED, WAITING, DONE, FAILED, DROPPED, UNWATCHED = range(6)
STATES = ("posted", "waiting", "done", "failed", "dropped", "unwatched")
DTYPES = (
    "other", "float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32",
    "int64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Only ever append: the position is what is written."""


class P2pLogWriter:
    """The worker's side. Not for several threads at the same moment: a record may get lost then,
    never torn.

    The hooks that call it have its inner parts at hand: after a blocking call the caches are cold,
    and each Python function costs ten times what it does in a loop.
    """

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self.memory = memory
        self._start = start
        self._numbers: dict[tuple[int, int, int, int], int] = {}
        self.groups: set[int] = set()
        """Numbers of the groups that have had one."""
        self.count = 0
        """Operations so far; also the newest record's serial."""

    def post(
        self, direction: int, peer: int, group: int, tag: int, dtype: int, sizes: Sequence[int]
    ) -> int:
        """An operation is about to be posted; returns where its record lies."""
        self.count = serial = self.count + 1
        key = (direction, group, peer, tag)
        self._numbers[key] = number = self._numbers.get(key, 0) + 1
        if number == 1:
            self.groups.add(group)
        at = self._start + serial % CAPACITY * RECORD_BYTES
        dims = len(sizes)
        first, second, third, fourth = sizes if dims == 4 else _four(sizes)
        RECORD.pack_into(
            self.memory, at, serial, time_ns(), number, tag, peer, group, first, second, third,
            fourth, direction, dtype, dims, POSTED, 0, serial & _LOW,
        )  # fmt: skip
        return at

    def end(self, at: int, state: int) -> None:
        """It is over: DONE, FAILED, DROPPED or UNWATCHED."""
        END.pack_into(self.memory, at + STATE_AT, state, time_ns())


def _four(sizes: Sequence[int]) -> tuple[int, ...]:
    if len(sizes) < 4:
        return (*sizes, 0, 0, 0, 0)[:4]
    rest = 1
    for size in sizes[3:]:
        rest *= size
    return (*sizes[:3], min(rest, _LOW))


class P2pLogReader:
    """The agent's side."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    @property
    def used(self) -> bool:
        """Whether there was any operation yet; costs next to nothing."""
        first = self._start + RECORD_BYTES
        return any(self._memory[first : first + 8])

    def read(self, groups: Mapping[int, GroupCreation], most: int) -> tuple[PointToPoint, ...]:
        """The newest `most` records and all that are still open, oldest first.

        `groups` is the group log, which has the names. Records being written at this moment are
        left out.
        """
        region, order = self._region()
        states = region[STATE_AT::RECORD_BYTES]
        older = [slot for slot in order[:-most] if states[slot] in (POSTED, WAITING)]
        found: list[PointToPoint] = []
        for slot in [*older[-most:], *order[-most:]]:
            at = slot * RECORD_BYTES
            raw = region[at : at + RECORD_BYTES]
            serial, *fields, low = RECORD.unpack(raw)
            # Read twice: a record that changes meanwhile may be half old and half new.
            again = self._memory[self._start + at : self._start + at + RECORD_BYTES]
            if serial & _LOW == low and again == raw:
                found.append(_operation(fields, groups))
        return tuple(found)

    def newest(self) -> tuple[int, bytes]:
        """Serial, and state with end, of the newest record; changes whenever an operation begins,
        is waited for or ends."""
        region, order = self._region()
        if not order:
            return 0, b""
        at = order[-1] * RECORD_BYTES
        return RECORD.unpack_from(region, at)[0], region[at + STATE_AT : at + STATE_AT + END.size]

    def _region(self) -> tuple[bytes, list[int]]:
        """The whole log, and its used slots, oldest first."""
        region = self._memory[self._start : self._start + REGION_BYTES]
        serials: list[int] = memoryview(region).cast("Q")[:: RECORD_BYTES // 8].tolist()
        return region, sorted(filter(serials.__getitem__, range(CAPACITY)), key=serials.__getitem__)


def _operation(fields: Sequence[int], groups: Mapping[int, GroupCreation]) -> PointToPoint:
    begun, number, tag, peer, group, *sizes, direction, dtype, dims, state, ended = fields
    made = groups.get(group)
    return PointToPoint(
        direction=DIRECTIONS[direction],
        peer=peer,
        pg="" if made is None else made.pg,
        pg_desc="" if made is None else made.pg_desc,
        tag=tag,
        number=number,
        sizes=tuple(sizes[:dims]),
        dtype=DTYPES[dtype],
        state=STATES[state],
        begun_ns=begun,
        ended_ns=ended,
    )
