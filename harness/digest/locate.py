"""Which words differ between two replicas, from their sums of rows and columns: no torch here.

Where one word differs, one bucket and one column do, both by the difference of the words: that is
the place, and the difference taken away again is the right content. The same holds for every word
of one row, of one column, and for words in different rows and columns that differ by different
amounts. Otherwise rows and columns are named, and which of their crossings are wrong stays open.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_PIECE = 512
"""Numbers that are compared in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One wrong word: bad - good = delta, modulo 2^64."""

    bucket: int
    column: int
    delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What differs. `words` is empty where rows and columns do not tell which crossings it is."""

    buckets: tuple[int, ...]
    columns: tuple[int, ...]
    words: tuple[Word, ...]

    def __bool__(self) -> bool:
        return bool(self.buckets or self.columns)


def locate(
    good_rows: Sequence[int],
    bad_rows: Sequence[int],
    good_columns: Sequence[int],
    bad_columns: Sequence[int],
) -> Damage:
    """Where `bad` differs from `good`; both of the same plan, buckets and columns of one moment.

    Numbers may be signed or not, lists or arrays of 64-bit integers. Raises ValueError where the
    lengths differ.
    """
    rows = _deltas(good_rows, bad_rows, "buckets")
    columns = _deltas(good_columns, bad_columns, "columns")
    return Damage(buckets=tuple(rows), columns=tuple(columns), words=tuple(_words(rows, columns)))


def _words(rows: dict[int, int], columns: dict[int, int]) -> list[Word]:
    if not rows or not columns or (sum(rows.values()) - sum(columns.values())) & _MASK:
        return []
    if len(rows) == 1:
        (bucket,) = rows
        return [Word(bucket=bucket, column=c, delta=d) for c, d in columns.items()]
    if len(columns) == 1:
        (column,) = columns
        return [Word(bucket=b, column=column, delta=d) for b, d in rows.items()]
    if Counter(rows.values()) != Counter(columns.values()) or len(set(rows.values())) != len(rows):
        return []
    where = {delta: column for column, delta in columns.items()}
    return [Word(bucket=b, column=where[d], delta=d) for b, d in rows.items()]


def _deltas(good: Sequence[int], bad: Sequence[int], what: str) -> dict[int, int]:
    """bad - good modulo 2^64 at every place where they differ."""
    if len(good) != len(bad):
        raise ValueError(f"{len(good)} and {len(bad)} {what} are not of the same plan")
    found = {}
    for first in range(0, len(good), _PIECE):
        left, right = good[first : first + _PIECE], bad[first : first + _PIECE]
        if left != right:
            for place, (a, b) in enumerate(zip(left, right, strict=True), first):
                if delta := (b - a) & _MASK:
                    found[place] = delta
    return found


def numbers(content: bytes | memoryview) -> Sequence[int]:
    """64-bit integers in the byte order of this machine, as `locate` takes them."""
    found = array("q")
    found.frombytes(content)
    return found


def corrected(word: int, delta: int) -> tuple[int, tuple[int, ...]]:
    """The right content of a wrong word, below 2^64, and which bits of it were changed."""
    good = (word - delta) & _MASK
    changed = good ^ (word & _MASK)
    return good, tuple(bit for bit in range(64) if changed >> bit & 1)
