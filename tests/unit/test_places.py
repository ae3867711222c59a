"""Where a tensor differs, in words, from what simulated ranks tell of it."""

import base64
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from harness import events as e
from harness import orders as o
from harness.diagnosis import places, replicas
from harness.digest.layout import WIDTH
from harness.sightings import DigestPart, DigestRow, TensorShape, TensorSums
from harness.state import AttemptState, digesting
from harness.state.replicas import Suspicion
from harness.topology import runs_of

SHAPE = TensorShape(dtype="float32", item=4, lengths=(64, 64), strides=(64, 1))


class Case:
    """Rank 2 of 3 has another tensor `w` since look 11, the end of step 5."""

    def __init__(self, shape: TensorShape = SHAPE, site: str = "parameters") -> None:
        self.shape = shape
        self.attempt = AttemptState(index=0, world_size=3, ranks={}, nodes={}, why="", started_ns=0)
        part = DigestPart(
            part=1, site=site, how="ddp", name="w", tensors=1, ranks=(0, 1, 2),
            members=runs_of(range(3)),
        )  # fmt: skip
        self.tell(e.DigestsRead(node_rank=0, rows=(), parts=(part,)))
        for count in range(8, 13):
            rows = tuple(
                DigestRow(
                    part=1, count=count, value=count + 99 * (rank == 2 and count > 10),
                    ranks=(rank,), step=count // 2, at_ns=count * 10**9,
                )
                for rank in range(3)
            )  # fmt: skip
            self.tell(e.DigestsRead(node_rank=0, rows=rows))
        (self.known,) = self.attempt.replicas.suspicions
        self.order(())

    def tell(self, event: digesting.Event) -> None:
        digesting.note(self.attempt, ("agent:0", 7), event)

    def order(self, buckets: tuple[int, ...]) -> None:
        order = o.LookClosely(
            attempt=0, part=1, count=self.known.at.count, name="w", ranks=(0, 2), buckets=buckets
        )
        digesting.ordered(self.attempt, 0, order, 5 * 10**9)

    def answer(self, good: Sequence[int], bad: Sequence[int], **fields: Any) -> None:
        """`fields`: what the numbers are, and of what."""
        kind, more = fields.pop("kind", "rows"), fields.pop("columns", ("", ""))
        suspect = self.known.at.count
        event = e.LookedClosely(
            node_rank=0, attempt=0, part=1, suspect=suspect, name="w", shape=self.shape,
            count=fields.pop("count", suspect), **fields,
            sums=tuple(
                TensorSums(ranks=(rank,), **{kind: packed(numbers)}, columns=columns)
                for rank, numbers, columns in ((0, good, more[0]), (2, bad, more[1]))
            ),
        )  # fmt: skip
        self.tell(event)

    def words(self, good: bytes, bad: bytes, buckets: tuple[int, ...] = (0,)) -> str:
        """What is said once the words of `buckets` are told."""
        left, right = (list(array("q", raw)) for raw in (good, bad))
        self.answer([sum(left) % 2**63], [(sum(right) + 1) % 2**63])
        self.order(buckets)
        self.answer(left, right, kind="words", count=15, buckets=buckets)
        return places.told(self.known)[0]


def packed(numbers: Sequence[int]) -> str:
    return base64.b64encode(array("q", numbers).tobytes()).decode()


def floats(*changes: tuple[int, float]) -> tuple[bytes, bytes]:
    """64 x 64 numbers, and the same with changes."""
    good = [0.5 + at for at in range(4096)]
    good = good[: 2 * WIDTH]
    bad = list(good)
    for at, value in changes:
        bad[at] = value
    return tuple(struct.pack(f"<{len(each)}f", *each) for each in (good, bad))  # type: ignore[return-value]


def test_one_element_with_its_bit_and_values() -> None:
    case = Case()
    flipped = struct.unpack("<f", struct.pack("<I", 0x40900000 ^ 1 << 30))[0]  # 4.5, bit 30
    assert case.words(*floats((4, flipped))) == (
        "[0, 4] bit 30: rank 2 has 1.32243e-38, ranks 0-1 4.5"
    )
    _, how = places.told(case.known)
    assert how == (
        "values and bits are those at the end of step 7: the tensor has moved on since it was"
        " suspected at the end of step 5"
    )


def test_a_finding_says_it_in_cause_reason_and_evidence() -> None:
    case = Case()
    case.words(*floats((4, 5.5)))
    (finding,) = replicas.find(case.attempt)
    where = "[0, 4] bit 21: rank 2 has 5.5, ranks 0-1 4.5"
    assert finding.cause.endswith(f"; equal until then; {where}")
    assert f"; w {where} (" in finding.reason
    assert finding.evidence[1].shows.startswith(f"w {where}; ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([(64 + at, -1.0) for at in range(64)], "the whole row 1; the first, [1, 0] bits "),
        ([(at, -1.0) for at in range(128)], "all of rows 0 to 1; the first, [0, 0] bits "),
        ([(32 * at, -1.0) for at in range(5)], "5 elements from [0, 0] to [2, 0], 32 apart; "),
        ([(7, -1.0), (9, 0.0), (20, 1.0)], "3 elements from [0, 7] to [0, 20]; the first, "),
    ],
)
def test_several_elements(changes: list[tuple[int, float]], said: str) -> None:
    assert Case().words(*floats(*changes)).startswith(said)


@pytest.mark.parametrize(
    ("dtype", "item", "said"),
    [
        ("float64", 8, "[1] bit 62: rank 2 has 8.9003e-308, ranks 0-1 1"),
        ("bfloat16", 2, "[7] bit 14: rank 2 has 1.175e-38, ranks 0-1 1"),
        ("float16", 2, "[7] bit 14: rank 2 has nan, ranks 0-1 1.9375"),
        ("int32", 4, "[3] bit 30: rank 2 has 0, ranks 0-1 1073741824"),
        ("float8_e4m3fn", 1, "[15] bit 6: rank 2 has 0x00, ranks 0-1 0x40"),
    ],
)
def test_types(dtype: str, item: int, said: str) -> None:
    tops = {"float64": 0x3FF0 << 48, "bfloat16": 0x3F80 << 48, "float16": 0x3FC0 << 48}
    word = tops.get(dtype, 1 << 62)
    shape = TensorShape(dtype=dtype, item=item, lengths=(16 // item,), strides=(1,))
    good, bad = (struct.pack("<2Q", 0, each) for each in (word, word ^ 1 << 62))
    case = Case(shape)
    found = case.words(good, bad)
    if dtype in ("float64", "bfloat16"):
        assert found.startswith(said.split(":", maxsplit=1)[0])
    else:
        assert found == said


def test_sums_alone_say_where_it_was() -> None:
    """Of a gradient nothing is left to read."""
    case = Case(site="gradients")
    case.answer([5, 6, 7], [5, 6 + (1 << 41), 7])
    assert places.told(case.known) == (
        "somewhere from [63, 46] to [63, 63]",
        "found by its sums after step 11; its values were not read",
    )
    columns = [0] * WIDTH, [0] * WIDTH
    columns[1][3] += 1 << 41
    case.answer([5, 6, 7], [5, 6 + (1 << 41), 7], columns=(packed(columns[0]), packed(columns[1])))
    assert places.told(case.known)[0] == "[63, 53] bit 9"


def test_a_gradient_that_is_gone_is_found_in_its_parameter() -> None:
    parameter, gradient = Case(), Case(site="gradients")
    parameter.words(*floats((4, 5.5)))
    said, _ = places.told(gradient.known, [gradient.known, parameter.known])
    assert said == "its parameter [0, 4] bit 21: rank 2 has 5.5, ranks 0-1 4.5"


def waits(known: Suspicion) -> bool:
    return places.until_ns(known) > 0


def test_what_is_waited_for() -> None:
    case = Case()
    assert waits(case.known)
    assert places.until_ns(case.known) == 5 * 10**9 + 4 * places.step_ns(case.known)
    case.answer([1], [2])
    assert not waits(case.known)  # words are to be asked for first
    case.order((0,))
    assert waits(case.known)
    case.answer([1], [2], kind="words", count=15, buckets=(0,))
    assert not waits(case.known)


def test_a_rank_that_has_nothing_to_tell_is_not_waited_for() -> None:
    case = Case()
    event = e.LookedClosely(
        node_rank=0, attempt=0, part=1, suspect=11, name="w", count=11,
        sums=(TensorSums(ranks=(2,), why="its sums are not kept any more"),),
    )  # fmt: skip
    case.tell(event)
    assert not waits(case.known)
    assert places.told(case.known) == ("", "")


def test_bad_answers_say_nothing() -> None:
    case = Case()
    case.answer([1, 2], [1])
    assert case.known.close.damage is None
    assert places.told(case.known) == ("", "")
