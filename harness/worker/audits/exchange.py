"""What a rank leaves for its neighbour on the same node: one micro-batch, in a file of the node's
agent.

Nobody waits for anybody: all that a rank leaves is written before its last gradient goes into the
reduction, and its neighbour reads it when that reduction is over. Two files take turns, as a rank
may be one step ahead.
"""

import io
import os
import struct
import sys
from typing import Any

MOST_BYTES = 64 << 20
"""Of inputs and of gradients of outputs."""
_HEAD = struct.Struct("=QQQ")  # number of the step, end of the pieces, parameters
_SLOT = struct.Struct("=QQ")  # whether there is a gradient; its digest
_LENGTH = struct.Struct("=Q")


def path_of(folder: str, attempt: int, rank: int, number: int) -> str:
    return os.path.join(folder, f"a{attempt}r{rank}.batch{number % 2}")


class TooLarge(Exception):
    """More than is copied for a check."""


class BatchWriter:
    """One micro-batch of this rank."""

    def __init__(self, path: str, number: int, parameters: int) -> None:
        self._number = number
        self._parameters = parameters
        self._end = _HEAD.size + parameters * _SLOT.size
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, _HEAD.pack(0, 0, parameters), 0)
        os.pwrite(self._file, bytes(parameters * _SLOT.size), _HEAD.size)

    def piece(self, content: dict[str, Any]) -> None:
        """Tensors and plain values. Raises TooLarge."""
        buffer = io.BytesIO()
        sys.modules["torch"].save(content, buffer)
        raw = buffer.getvalue()
        if self._end + len(raw) > MOST_BYTES:
            raise TooLarge
        os.pwrite(self._file, _LENGTH.pack(len(raw)) + raw, self._end)
        self._end += _LENGTH.size + len(raw)
        os.pwrite(self._file, _HEAD.pack(self._number, self._end, self._parameters), 0)

    def digest(self, place: int, value: int) -> None:
        os.pwrite(self._file, _SLOT.pack(1, value), _HEAD.size + place * _SLOT.size)

    def close(self, *, valid: bool) -> None:
        if not valid:
            os.pwrite(self._file, _HEAD.pack(0, 0, 0), 0)
        os.close(self._file)


def read(path: str, number: int, parameters: int) -> tuple[dict[str, Any], list[int | None]] | None:
    """The pieces together, and the digests of the gradients; None when there is nothing of step
    `number`, or not of such a model."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            step, end, count = _HEAD.unpack(head)
            if step != number or count != parameters:
                return None
            rest = file.read(end - _HEAD.size)
    except OSError:
        return None
    slots = [_SLOT.unpack_from(rest, at * _SLOT.size) for at in range(count)]
    content: dict[str, Any] = {"gradients": {}}
    at = count * _SLOT.size
    while at < len(rest):
        (length,) = _LENGTH.unpack_from(rest, at)
        at += _LENGTH.size
        buffer = io.BytesIO(rest[at : at + length])
        piece = sys.modules["torch"].load(buffer, weights_only=True, map_location="cpu")
        content["gradients"].update(piece.pop("gradients", {}))
        content.update(piece)
        at += length
    return content, [digest if there else None for there, digest in slots]
