"""What a rank leaves for its neighbour: one micro-batch, in a file of the node's agent, which takes
it to the agent of a neighbour on another node.

On one node nobody waits for anybody: all that a rank leaves is written before its last gradient
goes into the reduction, and its neighbour reads it when that reduction is over. From another node
it may come a moment later, or never. Two files take turns, as a rank may be one step ahead.
"""

import io
import os
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 64 << 20
"""Of inputs and of gradients of outputs."""
MOST_FILE_BYTES = 2 * MOST_BYTES
"""With the digests of a model's gradients."""
_HEAD = struct.Struct("=QQQQ")  # number of the step, end of the pieces, parameters, 1: all is there
NOTHING = _HEAD.pack(0, 0, 0, 0)
"""The head of a file in which nothing counts."""
_SLOT = struct.Struct("=QQ")  # whether there is a gradient; its digest
_LENGTH = struct.Struct("=Q")
_LOOKS_APART_SECONDS = 0.001
Content = tuple[dict[str, Any], list[int | None]]
"""The pieces together; the digest of each parameter's gradient."""


def path_of(folder: str, attempt: int, rank: int, number: int) -> str:
    return os.path.join(folder, f"a{attempt}r{rank}.batch{number % 2}")


class TooLarge(Exception):
    """More than is copied for a check."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a file has come: the pieces stand from `start` to `end`, before them the digests."""

    number: int
    start: int
    end: int
    whole: bool


def extent(file: int) -> Extent | None:
    """Of an open file; None when nothing that counts is in it. Raises OSError."""
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    number, end, count, whole = _HEAD.unpack(head)
    start = _HEAD.size + count * _SLOT.size
    if not number or not start <= end <= start + MOST_BYTES:
        return None
    return Extent(number, start, end, bool(whole))


class BatchWriter:
    """One micro-batch of this rank."""

    def __init__(self, path: str, number: int, parameters: int) -> None:
        self._number = number
        self._parameters = parameters
        self._start = self._end = _HEAD.size + parameters * _SLOT.size
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, NOTHING, 0)
        os.pwrite(self._file, bytes(parameters * _SLOT.size), _HEAD.size)

    def piece(self, content: dict[str, Any]) -> None:
        """Tensors and plain values. Raises TooLarge."""
        buffer = io.BytesIO()
        sys.modules["torch"].save(content, buffer)
        raw = buffer.getvalue()
        if self._end + _LENGTH.size + len(raw) > self._start + MOST_BYTES:
            raise TooLarge
        os.pwrite(self._file, _LENGTH.pack(len(raw)) + raw, self._end)
        self._end += _LENGTH.size + len(raw)
        self._say(whole=False)

    def digest(self, place: int, value: int) -> None:
        os.pwrite(self._file, _SLOT.pack(1, value), _HEAD.size + place * _SLOT.size)

    def complete(self) -> None:
        """There is no more to come."""
        self._say(whole=True)

    def _say(self, *, whole: bool) -> None:
        head = _HEAD.pack(self._number, self._end, self._parameters, int(whole))
        os.pwrite(self._file, head, 0)

    def close(self, *, valid: bool) -> None:
        if not valid:
            os.pwrite(self._file, NOTHING, 0)
        os.close(self._file)


def read(path: str, number: int, parameters: int, *, whole: bool = False) -> Content | None:
    """What was left; None when there is nothing of step `number`, not of such a model, or, where it
    must be `whole`, not yet all of it."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            step, end, count, complete = _HEAD.unpack(head)
            if step != number or count != parameters or complete < whole:
                return None
            rest = file.read(end - _HEAD.size)
    except OSError:
        return None
    slots = [_SLOT.unpack_from(rest, at * _SLOT.size) for at in range(count)]
    content: dict[str, Any] = {"gradients": {}, "made": {}, "cut": {}, "passed": []}
    at = count * _SLOT.size
    while at < len(rest):
        (length,) = _LENGTH.unpack_from(rest, at)
        at += _LENGTH.size
        buffer = io.BytesIO(rest[at : at + length])
        piece = sys.modules["torch"].load(buffer, weights_only=True, map_location="cpu")
        for name, value in piece.items():
            if name == "passed":
                content[name].extend(value)
            elif name in ("gradients", "made", "cut"):
                content[name].update(value)
            else:
                content[name] = value
        at += length
    return content, [digest if there else None for there, digest in slots]


def arrived(path: str, number: int, parameters: int, patience: float) -> Content | None:
    """What comes from another node, within `patience` seconds."""
    until = time.monotonic() + patience
    while (found := read(path, number, parameters, whole=True)) is None:
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOKS_APART_SECONDS)
    return found
