"""Whose numbers lie nearer to what comes out when they are computed again."""

import math
import struct
from collections.abc import Sequence

import pytest

from harness.diagnosis import nearness
from harness.digest.layout import WIDTH, Shape
from harness.sightings import DigestPart
from harness.state.closely import Closely
from harness.state.replicas import Look, Suspicion, Track
from harness.state.rerun import Earlier, Rerun
from harness.topology import runs_of

READ, BUCKET = 21, 3


def words(numbers: Sequence[float], letter: str = "f") -> list[int]:
    """A bucket with these numbers at its begin, as words."""
    packed = struct.pack(f"<{len(numbers)}{letter}", *numbers).ljust(8 * WIDTH, b"\0")
    return list(struct.unpack(f"<{WIDTH}q", packed))


def rerun(
    mine: Sequence[float], theirs: Sequence[float], again: Sequence[float], *, letter: str = "f",
    dtype: str = "float32", shift: int | None = -4,
) -> Rerun:  # fmt: skip
    """Rank 0 had `mine`, rank 1 `theirs`; in the attempt after, which comes to the same place four
    steps earlier by its count, they are `again`."""
    part = DigestPart(
        part=1, site="parameters", how="ddp", name="w", tensors=1, ranks=(0, 1),
        members=runs_of((0, 1)), clock=0,
    )  # fmt: skip
    at = Look(
        count=17, step=8, at_ns=0, ref=("agent:0", 1), progress={},
        values={5: frozenset({0}), 6: frozenset({1})},
    )  # fmt: skip
    close = Closely(
        name="w", ranks=(0, 1), buckets=(1, BUCKET), words_asked=True,
        shape=Shape(name="w", dtype=dtype, item=4, lengths=(9 * WIDTH,), strides=(1,)),
        words={READ: {0: [*words([1.0]), *words(mine, letter)],
                      1: [*words([1.0]), *words(theirs, letter)]}},
    )  # fmt: skip
    known = Suspicion(
        kind="split", track=Track(part=part, members=frozenset({0, 1})), before=None, at=at,
        group=frozenset({0, 1}), close=close,
    )  # fmt: skip
    found = Rerun(known=known, attempt=0, earlier=Earlier(anchors={}, differences={}), shift=shift)
    where = nearness.places(close)
    found.reread[READ - 8] = [words(again, letter)[place % WIDTH] for place in where]
    return found


def test_words_that_differ_are_known_by_their_places_in_the_tensor() -> None:
    close = rerun([1, 2, 3, 4], [1, 2, 3, 5], [0, 0, 0, 0]).known.close
    assert nearness.places(close) == (BUCKET * WIDTH + 1,)
    close.words.clear()
    assert nearness.places(close) == ()


@pytest.mark.parametrize(
    ("letter", "dtype"), [("f", "float32"), ("d", "float64"), ("e", "float16")]
)
def test_the_replica_that_lies_much_nearer_was_right(letter: str, dtype: str) -> None:
    for wrong, right in (([2.0, 5.0], {0}), ([1.0, 3.0], {1})):
        again = [1.01, 3.01] if right == {0} else [2.01, 5.01]
        found = rerun([1.0, 3.0], [2.0, 5.0], again, letter=letter, dtype=dtype)
        assert nearness.nearer(found) == right, wrong


def test_what_is_no_number_is_wrong() -> None:
    assert nearness.nearer(rerun([math.nan], [0.5], [0.4])) == {1}
    assert nearness.nearer(rerun([0.5], [math.inf], [0.4])) == {0}


@pytest.mark.parametrize(
    "found",
    [
        rerun([1.0], [2.0], [1.4]),  # about as far from both
        rerun([1.0, 5.0], [2.0, 6.0], [1.0, 6.0]),  # each nearer in another place
        rerun([1.0, 2.0, 3.0, 4.0], [9.0, 3.0, 4.0, 5.0], [1.0, 2.5, 3.5, 4.5]),  # mostly unclear
        rerun([1.0], [2.0], [math.nan]),  # wrong again
        rerun([1.0], [2.0], [1.0], dtype="int32"),
        rerun([1.0], [2.0], [1.0], shift=None),  # it is not known which place it is
        rerun([1.0], [2.0], [1.0], shift=-3),  # nor what it was there
    ],
)
def test_nothing_is_concluded_from_what_is_not_clear(found: Rerun) -> None:
    assert nearness.nearer(found) == frozenset()
