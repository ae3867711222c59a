"""From the sums of two replicas to the wrong element and bit, and back to equal bits."""

from __future__ import annotations

import random

import pytest
import torch

from harness.digest.locate import Damage, Word, corrected, locate, numbers
from harness.digest.plan import Plan
from harness.digest.repair import inspect, repair
from harness.digest.words import bits
from tests.digest.replicas import content, plan, replica


def sums(of: Plan) -> tuple[list[int], list[int]]:
    rows, columns = of.rows_and_columns()
    return rows.tolist(), columns.tolist()


def damage(good: Plan, bad: Plan) -> Damage:
    (rows, columns), (bad_rows, bad_columns) = sums(good), sums(bad)
    return locate(rows, bad_rows, columns, bad_columns)


DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128], ids=str)
def test_element_and_bits_of_one_word_are_named_and_put_right(dtype: torch.dtype) -> None:
    good, bad = replica(dtype, seed=1), replica(dtype, seed=1, apart=2)
    plans = plan(good), plan(bad)
    clean = sums(plans[0])
    assert not damage(*plans)
    draw = random.Random(3)
    names = list(bad)
    for _ in range(12):
        name = draw.choice(names)
        tensor = bad[name]
        at = tuple(draw.randrange(length) for length in tensor.shape)
        element = bits(tensor)[at].view(-1).view(torch.uint8)
        changed = sorted(draw.sample(range(8 * element.numel()), draw.randrange(1, 5)))
        if dtype is torch.complex128:  # of two words
            changed = changed[:1]
        for bit in changed:
            element[bit // 8] ^= 1 << bit % 8
        found = damage(*plans)
        (word,) = inspect(plans[1].layout, list(bad.values()), found.words)
        assert (word.name, word.tensor) == (name, names.index(name))
        assert word.elements == ((at, tuple(changed)),)
        repair(list(bad.values()), [word])
        assert sums(plans[1]) == clean
        assert all(torch.equal(bits(good[n]), bits(bad[n])) for n in names)


def test_a_word_of_a_tensor_with_gaps() -> None:
    tensor = content(torch.float32, (300, 300), seed=1)[:, 3:290]
    of = Plan([("a", tensor)])
    clean = sums(of)
    bits(tensor)[7, 11] ^= 1 << 30
    rows, columns = sums(of)
    (word,) = inspect(of.layout, [tensor], locate(clean[0], rows, clean[1], columns).words)
    assert word.elements == (((7, 11), (30,)),)
    repair([tensor], [word])
    assert sums(of) == clean


def test_words_of_one_row_of_one_column_and_apart() -> None:
    wide = 2039
    for places in ([3, 4, 5, 6], [7, 7 + wide, 7 + 5 * wide], [1, 3 * wide + 2, 9 * wide + 8]):
        tensor = torch.arange(10 * wide)
        of = Plan([("a", tensor)])
        clean = sums(of)
        right = tensor.clone()
        for k, place in enumerate(places):
            tensor[place] ^= (1 << 40) + k
        rows, columns = sums(of)
        found = locate(clean[0], rows, clean[1], columns)
        wrong = inspect(of.layout, [tensor], found.words)
        assert sorted(w.elements[0][0][0] for w in wrong) == places
        repair([tensor], wrong)
        assert torch.equal(tensor, right)


def test_where_crossings_are_open_rows_and_columns_are_named() -> None:
    wide = 2039
    tensor = torch.zeros(10 * wide, dtype=torch.int64)
    of = Plan([("a", tensor)])
    clean = sums(of)
    tensor[[wide + 3, 4 * wide + 5]] += 8
    rows, columns = sums(of)
    found = locate(clean[0], rows, clean[1], columns)
    assert found == Damage(buckets=(1, 4), columns=(3, 5), words=())
    tensor[[wide + 3, 4 * wide + 5]] -= 8
    tensor[[wide + 3, wide + 5]] += torch.tensor([8, -8])
    rows, columns = sums(of)
    found = locate(clean[0], rows, clean[1], columns)
    assert found == Damage(buckets=(), columns=(3, 5), words=())
    assert found


def test_sums_as_bytes_signs_and_ends() -> None:
    assert list(numbers(torch.tensor([1, -1]).numpy().tobytes())) == [1, -1]
    found = locate([5, 0], [5, -1], [0], [(1 << 64) - 1])
    assert found.words == (Word(bucket=1, column=0, delta=(1 << 64) - 1),)
    assert corrected(7, 8) == ((1 << 64) - 1, tuple(range(3, 64)))
    with pytest.raises(ValueError, match="2 and 1 buckets are not of the same plan"):
        locate([1, 2], [1], [], [])
