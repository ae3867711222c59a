"""Which part of an all-to-all goes to whom, and which rank a rooted collective names: what a call
says and no flight record keeps. Part of the call notes (`harness.worker.sites`).
"""

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_MEMBERS = 64
"""Larger groups are left out."""
CAPACITY = 64
# serial of the call, sequence number of the group before it, members, parts sent and received,
# the serial's low half
_HEAD = struct.Struct("=QIHxx")
_LOW = 0xFFFFFFFF
RECORD_BYTES = _HEAD.size + 4 * (2 * MOST_MEMBERS + 1)
REGION_BYTES = CAPACITY * RECORD_BYTES
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
IN_PARTS = frozenset({"alltoall", "alltoall_base", "all_to_all_single"})
NO_ROOT = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Elements that an all-to-all sends to each member and receives from it, in group order;
    `seq` is the group's sequence number before the call."""

    seq: int
    sent: tuple[int, ...]
    received: tuple[int, ...]


class PartsWriter:
    """The worker's side. Threads may lose each other's records, never tear them."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    def note(self, serial: int, pg: Any, members: int, args: Sequence[Any]) -> None:
        """Call `serial` is about to be made with `args`, as ProcessGroup's methods take them."""
        if not 1 < members <= MOST_MEMBERS:
            return
        try:
            received, sent = _elements(members, args)
            seq = pg._get_sequence_number_for_group() & _LOW
            record = struct.pack(
                f"={2 * members}I", *(min(part, _LOW) for part in (*sent, *received))
            )
        except Exception:  # whatever was passed: torch knows what to say
            return
        at = self._start + serial % CAPACITY * RECORD_BYTES
        _HEAD.pack_into(self._memory, at, serial, seq, members)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(record)] = record
        struct.pack_into("=I", self._memory, at + RECORD_BYTES - 4, serial & _LOW)


class PartsReader:
    """The agent's side."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    def of(self, serial: int) -> Parts | None:
        """Of call `serial`; None where it has none, or no longer."""
        at = self._start + serial % CAPACITY * RECORD_BYTES
        record = self._memory[at : at + RECORD_BYTES]
        found, seq, members = _HEAD.unpack_from(record)
        (low,) = struct.unpack_from("=I", record, RECORD_BYTES - 4)
        if found != serial or low != serial & _LOW or not 1 < members <= MOST_MEMBERS:
            return None
        parts = struct.unpack_from(f"={2 * members}I", record, _HEAD.size)
        return Parts(seq=seq, sent=parts[:members], received=parts[members:])


def root_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The group rank that a call of broadcast, reduce, gather or scatter names; NO_ROOT where it
    names none."""
    for value in (*args[1:], *kwargs.values()):
        root = getattr(value, "rootRank", value)
        if type(root) is int:
            return root if 0 <= root < NO_ROOT else NO_ROOT
    return NO_ROOT


def _elements(members: int, args: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Received and sent, by member. Of `alltoall_base` the arguments are output, input and how many
    rows of each are whose; of `alltoall` lists of tensors."""
    out, into, *rows = args
    if isinstance(out, (list, tuple)):
        return [tensor.numel() for tensor in out], [tensor.numel() for tensor in into]
    out_rows, in_rows = rows[:2] if len(rows) >= 2 else ((), ())
    return _cut(out.shape, out_rows, members), _cut(into.shape, in_rows, members)


def _cut(shape: Sequence[int], rows: Sequence[int], members: int) -> list[int]:
    if not rows:
        return [math.prod(shape) // members] * members
    row = math.prod(shape[1:])
    return [count * row for count in rows]
