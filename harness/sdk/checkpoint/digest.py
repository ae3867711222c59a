"""A digest of a tensor that does not depend on how it is cut into shards.

digest = sum over all elements of bits(element) * w_0(i_0) * w_1(i_1) * ... mod 2^64, where i_d are
the element's coordinates in the whole tensor and every w_d(i) is an odd 64-bit number drawn from
them. A sum can be taken in any order, so the digests of shards of any rectangular layout add up to
that of the whole. Multilinear hashing, Carter and Wegman 1979; elements of more than 32 bits count
as several, so that a changed one always changes the sum, and a random pattern of several changes
cancels with a probability below 2^-31.
"""

import functools
from collections.abc import Sequence

import torch

from harness.digest import words
from harness.digest.mix import MASK, odd

_TABLE = 8192
_BLOCK = 1 << 15
"""Elements widened to 64 bits at a time: 256 KiB, so that they stay in the cache."""
_NARROW = 32
"""Columns below which a product for every row costs more than a weight for every element."""


def digest(chunk: torch.Tensor, offsets: Sequence[int] = ()) -> int:
    """What the elements of `chunk`, a plain tensor on the CPU, add to the digest of its tensor.

    `offsets` are the coordinates of its first element there; left out, the chunk is the whole.
    Returns an integer below 2^64; sums of them are to be taken modulo 2^64.
    """
    if chunk.numel() == 0:
        return 0
    with torch.no_grad():
        bits, per_element = _bits(chunk.detach())
        start = list(offsets or (0,) * chunk.dim()) or [0]
        start[-1] *= per_element
        if bits.dim() == 1:
            return _line(bits, start[0]) & MASK
        rows = _row_weights(bits.shape[:-1], start[:-1])
        return _table(bits.reshape(-1, bits.shape[-1]), rows, start[-1]) & MASK


def _bits(chunk: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The elements as integers of at most 32 bits, and how many of them an element became."""
    plain = chunk.contiguous()
    if plain.dim() == 0:
        plain = plain.reshape(1)
    numbers = words.bits(plain)
    size = plain.element_size()
    if size <= 4:
        return numbers, 1
    return numbers.reshape(*plain.shape[:-1], -1).view(torch.int32), size // 4


def _line(bits: torch.Tensor, start: int) -> int:
    """Digest of one dimension: its weights are products of two, so whole tables need but one."""
    length = bits.shape[0]
    head = min(length, -start % _TABLE)
    whole = (length - head) // _TABLE
    total = 0
    for begin, end in ((0, head), (head + whole * _TABLE, length)):
        if end > begin:
            weights = _weights(0, start + begin, end - begin)
            total += int(torch.dot(bits[begin:end].to(torch.int64), weights))
    if whole:
        body = bits[head : head + whole * _TABLE].view(whole, _TABLE)
        outer = _outer_weights(0, (start + head) // _TABLE, whole)
        total += _weighted(body, outer, _table_of(0))
    return total


def _table(bits: torch.Tensor, rows: torch.Tensor, start: int) -> int:
    """Digest of (rows, columns) with a weight for each row; columns begin at `start`."""
    total = 0
    for first in range(0, bits.shape[1], _BLOCK):
        part = bits[:, first : first + _BLOCK]
        total += _weighted(part, rows, _weights(0, start + first, part.shape[1]))
    return total


def _weighted(bits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> int:
    """rows @ bits @ columns in 64-bit integers that wrap."""
    step = max(1, _BLOCK // bits.shape[1])
    wide = torch.empty((min(step, bits.shape[0]), bits.shape[1]), dtype=torch.int64)
    total = 0
    for first in range(0, bits.shape[0], step):
        part = bits[first : first + step]
        block = wide[: part.shape[0]].copy_(part)
        these = rows[first : first + step]
        if columns.shape[0] < _NARROW:
            each = (these[:, None] * columns[None, :]).reshape(-1)
            total += int(torch.dot(block.reshape(-1), each))
        else:
            total += int(torch.dot(torch.mv(block, columns), these))
    return total


def _row_weights(shape: Sequence[int], start: Sequence[int]) -> torch.Tensor:
    """Products of the weights of all dimensions but the last, in the order of the rows."""
    product = torch.ones(1, dtype=torch.int64)
    for place, (length, first) in enumerate(zip(shape, start, strict=True)):
        axis = len(shape) - place
        product = (product[:, None] * _weights(axis, first, length)[None, :]).reshape(-1)
    return product


def _weights(axis: int, start: int, length: int) -> torch.Tensor:
    """Weights of `length` coordinates from `start` on; axes are counted from the last one."""
    first, last = start // _TABLE, (start + length - 1) // _TABLE
    outer = _outer_weights(axis, first, last - first + 1)
    flat = (outer[:, None] * _table_of(axis)[None, :]).reshape(-1)
    begin = start - first * _TABLE
    return flat[begin : begin + length]


@functools.lru_cache(maxsize=16)
def _table_of(axis: int) -> torch.Tensor:
    return odd(torch.arange(_TABLE, dtype=torch.int64) + (2 * axis << 40))


def _outer_weights(axis: int, first: int, count: int) -> torch.Tensor:
    coordinates = torch.arange(first, first + count, dtype=torch.int64)
    return odd(coordinates + ((2 * axis + 1) << 40))
