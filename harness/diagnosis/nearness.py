"""Which of two replicas was wrong, where neither has the bits that come out when it is computed
again: the fault was between two looks, and both have taken in what came of it since.

A fault moves the numbers that it hits at once and by much; what follows from it on the other
replica comes through gradients, a step size at a time. So the replica whose numbers lie much nearer
to those that are computed again was right.
"""

import math
import struct
from collections.abc import Mapping, Sequence

from harness.digest.layout import WIDTH, WORD
from harness.state.closely import Closely
from harness.state.rerun import Rerun

MOST_WORDS = 16
_FARTHER = 4.0
"""Times as far off: what is less clear tells nothing."""
_LEAST_CLEAR = 0.5
"""Of the numbers that differ."""
_FORMATS = {"float64": "d", "float32": "f", "float16": "e"}


def places(close: Closely) -> tuple[int, ...]:
    """Positions in the tensor of the first words that differ between the two replicas."""
    if close.read is None or len(close.ranks) < 2:
        return ()
    one, other = (close.words[close.read][rank] for rank in close.ranks[:2])
    if len(one) != len(other):
        return ()
    differ = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return tuple(close.buckets[at // WIDTH] * WIDTH + at % WIDTH for at in differ[:MOST_WORDS])


def nearer(rerun: Rerun) -> frozenset[int]:
    """Those of the group that were right; empty: it is not known, or not clear."""
    known, close = rerun.known, rerun.known.close
    if close.read is None or close.shape is None or rerun.shift is None or rerun.void:
        return frozenset()
    again = rerun.reread.get(rerun.count_of(close.read))
    where = places(close)
    if again is None or not where or len(again) != len(where):
        return frozenset()
    sides = {rank: _picked(close, rank, where) for rank in close.ranks[:2]}
    right = _right(sides, again, close.shape.dtype)
    return next(
        (ranks & known.group for ranks in known.at.classes if right is not None and right in ranks),
        frozenset(),
    )


def _picked(close: Closely, rank: int, where: Sequence[int]) -> list[int]:
    words = close.words[close.read or 0][rank]
    begins = {bucket: WIDTH * at for at, bucket in enumerate(close.buckets)}
    return [words[begins[place // WIDTH] + place % WIDTH] for place in where]


def _right(sides: Mapping[int, Sequence[int]], again: Sequence[int], dtype: str) -> int | None:
    (one, mine), (other, theirs) = sides.items()
    numbers = [_numbers(words, dtype) for words in (mine, theirs, again)]
    if not all(numbers):
        return None
    votes = []
    for a, b, right in zip(*numbers, strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        far_a, far_b = _distance(a, right), _distance(b, right)
        low, high = min(far_a, far_b), max(far_a, far_b)
        clear = high > _FARTHER * low
        votes.append((one if far_a < far_b else other) if clear else None)
    clear_votes = {vote for vote in votes if vote is not None}
    enough = sum(vote is not None for vote in votes) >= _LEAST_CLEAR * len(votes)
    return clear_votes.pop() if len(clear_votes) == 1 and enough else None


def _distance(number: float, right: float) -> float:
    return abs(number - right) if math.isfinite(number) and math.isfinite(right) else math.inf


def _numbers(words: Sequence[int], dtype: str) -> list[float]:
    """The numbers in some words; none of types that are no floating point, or too coarse."""
    packed = struct.pack(f"<{len(words)}q", *words)
    if dtype in _FORMATS:
        size = struct.calcsize(_FORMATS[dtype])
        return list(struct.unpack(f"<{len(packed) // size}{_FORMATS[dtype]}", packed))
    if dtype == "bfloat16":
        halves = [packed[at : at + 2] for at in range(0, WORD * len(words), 2)]
        return [float(struct.unpack("<f", bytes(2) + half)[0]) for half in halves]
    return []
