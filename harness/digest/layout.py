"""How the words of many tensors are cut into buckets, without any tensor: standard library only.

The words of every tensor are laid in rows of WIDTH; a row is one bucket, its last one filled up
with zeros. A prime width keeps periodic damage from meeting itself in one column.
"""

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 2039
WORD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One tensor as it lies in this rank's memory; `strides` is None where a copy is read."""

    name: str
    dtype: str
    item: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        size = self.item
        for length in self.lengths:
            size *= length
        return size

    @property
    def words(self) -> int:
        return -(-self.nbytes // WORD)

    @property
    def buckets(self) -> int:
        return -(-self.words // WIDTH)


class Layout:
    """Which tensor, element and bit a bucket, a column and a bit of a word belong to."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = tuple(shapes)
        self.firsts = [0]
        for shape in self.shapes:
            self.firsts.append(self.firsts[-1] + shape.buckets)

    @property
    def buckets(self) -> int:
        return self.firsts[-1]

    @property
    def plan_hash(self) -> int:
        """64 bits over names, shapes, types and geometry: only equal ones can be compared."""
        content = hashlib.blake2b(f"rows of {WIDTH} words".encode(), digest_size=8)
        for shape in self.shapes:
            content.update(repr((shape.name, shape.dtype, shape.lengths, shape.strides)).encode())
        return int.from_bytes(content.digest(), "big")

    def tensor(self, bucket: int) -> int:
        """Index of the tensor that the bucket belongs to; IndexError where there is none."""
        if not 0 <= bucket < self.buckets:
            raise IndexError(f"bucket {bucket} of {self.buckets}")
        return bisect.bisect_right(self.firsts, bucket) - 1

    def element(
        self, bucket: int, column: int, bit: int
    ) -> tuple[int, tuple[int, ...], int] | None:
        """(tensor, coordinates of the element, bit of it) of a bit of a word, bit 0 the lowest.

        None where the place is only filling. Little-endian memory, as on every machine that
        PyTorch is built for.
        """
        tensor = self.tensor(bucket)
        shape = self.shapes[tensor]
        word = (bucket - self.firsts[tensor]) * WIDTH + column
        byte = word * WORD + bit // 8
        if byte >= shape.nbytes:
            return None
        within = byte % shape.item * 8 + bit % 8
        return tensor, _coordinates(shape, byte // shape.item), within


def _coordinates(shape: Shape, place: int) -> tuple[int, ...]:
    """Of the element that stands at `place` in memory."""
    if shape.strides is None:
        index = []
        for length in reversed(shape.lengths):
            place, at = divmod(place, length)
            index.append(at)
        return tuple(reversed(index))
    found = [0] * len(shape.lengths)
    by_stride = sorted(range(len(found)), key=lambda d: -shape.strides[d])  # type: ignore[index]
    for dim in by_stride:
        if shape.lengths[dim] > 1:
            found[dim], place = divmod(place, shape.strides[dim])
    return tuple(found)
