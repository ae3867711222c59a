"""The creations of process groups, in shared memory: begun, ended, by whom.

Two rings of fixed records behind the pulse page, in the same memory file: they outlive a SIGKILL
and can be read while the rank is stopped. A record is written, then published by one aligned 8-byte
store of its number, so that a reader never takes a half-written one.

All ranks take part in making each group, and a mesh of thousands has thousands of them: those that
the rank is not in have a ring of their own, or a few of its own would be lost among them.
"""

import mmap
import struct
import threading
import time
from collections.abc import Sequence
from functools import lru_cache

from harness.collectives import GroupCreation
from harness.topology import runs_of

CAPACITY = 2048
"""Of the rank's own groups, which are numbered from 1."""
OTHERS = 256
"""Of those that it is not in, the newest and those that it is still making."""
_OTHERS_FROM = 1 << 30
"""Their numbers begin above this one."""
RECORD_BYTES = 512
REGION_BYTES = (CAPACITY + OTHERS) * RECORD_BYTES
# number, begun_ns, ended_ns, size of the group, is it a member, failed, own place + 1, name,
# description, ranks
_RECORD = struct.Struct("=QqqIBBH96s64s320s")
_ENDED = struct.Struct("=q")
_ENDED_AT = 16
_FAILED_AT = 29
_MOST_PLACES = (1 << 16) - 1
assert _RECORD.size == RECORD_BYTES


def _slot(number: int) -> int:
    """Where the record of that number lies."""
    if number > _OTHERS_FROM:
        return CAPACITY + (number - _OTHERS_FROM - 1) % OTHERS
    return (number - 1) % CAPACITY


class GroupLogWriter:
    """The worker's side; creations are rare, so it may take its time."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._lock = threading.Lock()
        self._count = 0
        self._others = _OTHERS_FROM

    def begin(
        self, name: str, desc: str, ranks: Sequence[int], member: bool, place: int = -1
    ) -> int:
        """The rank has begun to create a group; returns the record's number. `place`: its own among
        `ranks`, as its program says; -1: not said."""
        begun_ns = time.time_ns()
        with self._lock:
            number = self._next(member)
        at = self._at(number)
        said = place + 1 if -1 <= place < _MOST_PLACES else 0
        fields = (
            len(ranks), member, False, said, _cut(name, 96), _cut(desc, 64), _pack_ranks(ranks),
        )  # fmt: skip
        _RECORD.pack_into(self._memory, at, 0, begun_ns, 0, *fields)
        struct.pack_into("=Q", self._memory, at, number)
        return number

    def _next(self, member: bool) -> int:
        if member:
            self._count += 1
            return self._count
        for _ in range(OTHERS):
            self._others += 1
            number, _, ended, *_ = _RECORD.unpack_from(self._memory, self._at(self._others))
            if ended or not number:
                break  # the others are still under way
        return self._others

    def end(self, number: int, *, failed: bool = False) -> None:
        """It is made, or has raised."""
        at = self._at(number)
        if struct.unpack_from("=Q", self._memory, at)[0] == number:
            self._memory[at + _FAILED_AT] = failed
            _ENDED.pack_into(self._memory, at + _ENDED_AT, time.time_ns())

    def _at(self, number: int) -> int:
        return self._start + _slot(number) * RECORD_BYTES


class GroupLogReader:
    """The agent's side."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    def read(self) -> dict[int, GroupCreation]:
        """All records there are, by number, in the order in which they were begun."""
        found: dict[int, GroupCreation] = {}
        for ring in (range(CAPACITY), range(CAPACITY, CAPACITY + OTHERS)):
            for slot in ring:
                raw = self._raw(slot)
                if raw[:_ENDED_AT] == bytes(_ENDED_AT):
                    break  # nothing was ever written here or beyond
                number, group = _creation(raw)
                if number and self._raw(slot)[:8] == raw[:8]:
                    found[number] = group
        return dict(sorted(found.items(), key=lambda item: (item[1].begun_ns, item[0])))

    def made(self, since: int) -> int:
        """How many of its own in a row are made or have raised, when it had been `since` at the
        last call; costs next to nothing."""
        while True:
            at = self._start + since % CAPACITY * RECORD_BYTES
            number, _, ended, *_ = _RECORD.unpack_from(self._memory, at)
            if number <= since or not ended:
                return since
            since = number

    def one(self, wanted: int) -> GroupCreation | None:
        """Record number `wanted`."""
        slot = _slot(wanted)
        raw = self._raw(slot)
        number, group = _creation(raw)
        return group if number == wanted and self._raw(slot)[:8] == raw[:8] else None

    def _raw(self, slot: int) -> bytes:
        at = self._start + slot * RECORD_BYTES
        return self._memory[at : at + RECORD_BYTES]


def _creation(raw: bytes) -> tuple[int, GroupCreation]:
    """Number and content of a record; number 0: it is being written."""
    number, begun, ended, size, member, failed, place, name, desc, ranks = _RECORD.unpack(raw)
    return number, GroupCreation(
        pg=_text(name),
        pg_desc=_text(desc),
        ranks=_unpack_ranks(ranks, size),
        member=bool(member),
        begun_ns=begun,
        ended_ns=ended,
        failed=bool(failed),
        place=place - 1,
    )


def _cut(text: str, limit: int) -> bytes:
    return text.encode()[:limit]


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _pack_ranks(ranks: Sequence[int]) -> bytes:
    """As runs `first:step:count`: the groups of a mesh are one or few. Empty when too long."""
    text = ",".join(":".join(map(str, run)) for run in runs_of(ranks)).encode()
    return text if len(text) <= 320 else b""


# A look reads the log of each rank several times, and ranks of a node are in the same world.
@lru_cache(maxsize=512)
def _unpack_ranks(raw: bytes, size: int) -> tuple[int, ...]:
    text = _text(raw)
    ranks: list[int] = []
    for run in filter(None, text.split(",")):
        first, step, count = map(int, run.split(":"))
        ranks += [first + step * at for at in range(count)]
    return tuple(ranks) if len(ranks) == size else ()
