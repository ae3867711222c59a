"""Digests of a rank's tensors in shared memory: what is digested, and the values, step by step.

A ring of bytes with records of any length, none of which is cut by its end. A record is written,
then published by one aligned 8-byte store of the number of bytes written so far. A reader that
falls behind by most of the ring loses what is in it and goes on from the newest. So does one that
finds a record with another checksum: a fault of the ring is none of the training's numbers.
"""

import json
import mmap
import struct
import zlib
from dataclasses import dataclass
from typing import Any

CAPACITY = 4 << 20
LARGEST = CAPACITY // 4
"""Bytes of one record, its head included."""
HEAD_BYTES = 8
REGION_BYTES = HEAD_BYTES + CAPACITY
FILLER, PLAN, VALUES, ANSWER = 0, 1, 2, 3
_HEAD = struct.Struct("=QIII")  # where it begins, counted from the first byte ever; body; kind; sum
_VALUES = struct.Struct("=IIqqqq")  # plan, number of digests, count, step, progress, wall-clock ns
MOST_TENSORS = (LARGEST - _HEAD.size - _VALUES.size) // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The digests of all tensors of `plan`, in its order, when it was looked at as the `count`-th.

    `step` is what the rank counted then, `at_ns` wall clock. `progress` goes on by as much on all
    ranks that do the same between two looks.
    """

    plan: int
    count: int
    step: int
    progress: int
    at_ns: int
    digests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent has asked of one tensor."""

    content: dict[str, Any]


class DigestWriter:
    """The worker's side; one thread at a time."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._written = 0

    def plan(self, content: dict[str, Any]) -> bool:
        """What the values of a plan are of; False when there is too much of it."""
        return self._put(PLAN, json.dumps(content, separators=(",", ":")).encode())

    def answer(self, content: dict[str, Any]) -> bool:
        """What was asked of one tensor; False when it is too much."""
        return self._put(ANSWER, json.dumps(content, separators=(",", ":")).encode())

    def values(self, values: Values) -> bool:
        """False when there are too many."""
        number = len(values.digests)
        head = _VALUES.pack(
            values.plan, number, values.count, values.step, values.progress, values.at_ns
        )
        return self._put(VALUES, head + struct.pack(f"={number}Q", *values.digests))

    def _put(self, kind: int, body: bytes) -> bool:
        size = _padded(_HEAD.size + len(body))
        if size > LARGEST:
            return False
        left = CAPACITY - self._written % CAPACITY
        if left < size:
            if left >= _HEAD.size:
                self._head(FILLER, left - _HEAD.size, b"")
            self._publish(self._written + left)
        at = self._head(kind, len(body), body)
        self._memory[at : at + len(body)] = body
        self._publish(self._written + size)
        return True

    def _head(self, kind: int, size: int, body: bytes) -> int:
        at = self._start + HEAD_BYTES + self._written % CAPACITY
        checksum = _sum(self._written, size, kind, body)
        _HEAD.pack_into(self._memory, at, self._written, size, kind, checksum)
        return at + _HEAD.size

    def _publish(self, written: int) -> None:
        self._written = written
        struct.pack_into("=Q", self._memory, self._start, written)


class DigestReader:
    """The agent's side: what is new since the last read."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._read = 0
        self.lost = 0
        """Times that records were overwritten before they were read, or were damaged."""

    def new(self) -> list[dict[str, Any] | Values | Answer]:
        """Plans, values and answers since the last call, oldest first."""
        found: list[dict[str, Any] | Values | Answer] = []
        written = self._written()
        while self._read < written:
            at = self._read % CAPACITY
            base = self._start + HEAD_BYTES + at
            left = CAPACITY - at
            if left < _HEAD.size:
                self._read += left
                continue
            begun, size, kind, checksum = _HEAD.unpack_from(self._memory, base)
            body = self._memory[base + _HEAD.size : base + _HEAD.size + min(size, left)]
            torn = begun != self._read or self._written() - self._read + LARGEST > CAPACITY
            if torn or checksum != _sum(begun, size, kind, b"" if kind == FILLER else body):
                self.lost += 1
                self._read = self._written()
                return found
            self._read += left if kind == FILLER else _padded(_HEAD.size + size)
            if kind == PLAN:
                found.append(json.loads(body))
            elif kind == VALUES:
                found.append(_values(body))
            elif kind == ANSWER:
                found.append(Answer(json.loads(body)))
        return found

    def _written(self) -> int:
        (written,) = struct.unpack_from("=Q", self._memory, self._start)
        return int(written)


def _sum(begun: int, size: int, kind: int, body: bytes) -> int:
    return zlib.crc32(body, (begun ^ begun >> 32 ^ size << 2 ^ kind) & 0xFFFFFFFF)


def _values(body: bytes) -> Values:
    plan, number, count, step, progress, at_ns = _VALUES.unpack_from(body)
    digests = struct.unpack_from(f"={number}Q", body, _VALUES.size)
    return Values(
        plan=plan, count=count, step=step, progress=progress, at_ns=at_ns, digests=digests
    )


def _padded(size: int) -> int:
    return -(-size // 8) * 8
