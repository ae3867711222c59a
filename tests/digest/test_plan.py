"""Sums and folds of many tensors, planned once and taken again and again."""

from __future__ import annotations

import weakref

import pytest
import torch

from harness.digest.layout import WIDTH
from harness.digest.plan import Plan
from harness.digest.words import words
from tests.digest.replicas import content, plan, replica

MASK = (1 << 64) - 1
DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.bool),
    *(torch.complex64, torch.complex128),
]


def table(tensor: torch.Tensor) -> torch.Tensor:
    """The words of a tensor as rows, filled up with zeros."""
    row = words(tensor)
    rows = torch.zeros(-(-len(row) // WIDTH) * WIDTH, dtype=torch.int64)
    rows[: len(row)] = row
    return rows.view(-1, WIDTH)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_columns_are_those_of_all_tensors(dtype: torch.dtype) -> None:
    tensors = {
        **replica(dtype, seed=1),
        **{"number": content(dtype, (), seed=2), "none": content(dtype, (0, 3), seed=3)},
        "gaps": content(dtype, (300, 300), seed=4)[:, 5:250],
        "few with gaps": content(dtype, (30, 30), seed=5)[:, 5:25],
    }
    of = plan(tensors)
    tables = [table(tensor) for tensor in tensors.values()]
    rows = torch.cat([part.sum(1) for part in tables])
    columns = torch.cat(tables).sum(0)
    assert torch.equal(of.rows(), rows)
    assert torch.equal(of.columns(), columns)
    out = torch.empty_like(rows)
    assert of.rows(out) is out
    assert torch.equal(out, rows)


def test_without_tensors_there_is_nothing() -> None:
    of = Plan([])
    assert of.rows().tolist() == []
    assert of.columns().tolist() == [0] * WIDTH
    assert of.digests(of.rows()) == []
    assert of.fold(of.rows()) == 0


def test_the_digest_of_a_tensor_follows_its_formula() -> None:
    tensor = content(torch.float32, (20_000,), seed=1)
    of = Plan([("other", torch.randn(10)), ("a", tensor)])
    expected = 0
    for place, bucket in enumerate(table(tensor).sum(1).tolist()):
        number = bucket & MASK
        expected += (number ^ (number >> 32)) * odd(place + (1 << 40))
    assert of.digests(of.rows())[1] == expected & MASK
    alone = Plan([("b", tensor)])
    assert alone.digests(alone.rows()) == [expected & MASK]


def odd(number: int) -> int:
    """splitmix64's finaliser of number * golden ratio, made odd."""
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & MASK
    return (mixed ^ (mixed >> 31)) | 1


def test_folds_depend_on_order_and_on_every_bucket() -> None:
    tensors = replica(torch.bfloat16, seed=1)
    of = plan(tensors)
    vector = of.rows().clone()
    digests, fold = of.digests(vector), of.fold(vector)
    assert all(0 <= number <= MASK for number in [*digests, fold])
    swapped = vector.clone()
    swapped[[2, 3]] = swapped[[3, 2]]
    assert of.fold(swapped) != fold
    for bucket in range(1, len(vector)):
        pair = [bucket, bucket - 1]
        top = vector.clone()
        top[pair] ^= -(1 << 63)
        assert of.fold(top) != fold
        differ = [place for place, d in enumerate(of.digests(top)) if d != digests[place]]
        assert differ == sorted({of.layout.tensor(b) for b in pair})
    exchanged = Plan([("a", torch.ones(5)), ("b", torch.zeros(5))])
    before = exchanged.fold(exchanged.rows())
    assert exchanged.rebind([torch.zeros(5), torch.ones(5)])
    assert exchanged.fold(exchanged.rows()) != before


def test_the_hash_of_a_plan_tells_what_can_be_compared() -> None:
    tensor = torch.randn(60, 60)
    same = Plan([("a", tensor)]).plan_hash
    assert 0 <= same <= MASK
    assert Plan([("a", torch.zeros(3601)[1:].view(60, 60))]).plan_hash == same
    one = torch.empty_strided((1, 60, 1, 60), (7, 60, 9, 1))
    assert Plan([("a", one)]).plan_hash == Plan([("a", torch.ones(1, 60, 1, 60))]).plan_hash
    others = [
        [("b", tensor)],
        [("a", tensor.view(torch.int32))],
        [("a", tensor.view(3600))],
        [("a", tensor.t())],
        [("a", tensor), ("b", tensor)],
        [("a", tensor[:59])],
        [("a", torch.randn(60, 120)[:, ::2])],
    ]
    hashes = [Plan(named).plan_hash for named in others]
    assert len({same, *hashes}) == len(others) + 1


def test_other_tensors_of_the_same_kind_take_the_place() -> None:
    of = plan(replica(torch.bfloat16, seed=1))
    for apart in (0, 2):
        others = replica(torch.bfloat16, seed=2, apart=apart)
        expected = plan(others).rows()
        if of.rebind(list(others.values())):
            assert torch.equal(of.rows(), expected)
            assert torch.equal(of.columns(), plan(others).columns())
        else:
            assert apart == 2
    assert of.rebind([t.clone() for t in others.values()][:-1]) is False


@pytest.mark.parametrize("kind", ["shape", "type", "strides", "freed", "sparse", "fewer"])
def test_tensors_of_another_kind_do_not(kind: str) -> None:
    tensors = [torch.randn(100, 100), torch.randn(3, 3)]
    of = Plan([("a", tensors[0]), ("b", tensors[1])])
    before = of.rows().clone()
    others = [t.clone() for t in tensors]
    if kind == "shape":
        others[1] = torch.randn(9)
    if kind == "type":
        others[0] = others[0].view(torch.int32)
    if kind == "strides":
        others[0] = others[0].t()
    if kind == "freed":
        others[0].untyped_storage().resize_(0)
    if kind == "sparse":
        others[1] = others[1].to_sparse()
    if kind == "fewer":
        del others[1]
    assert of.rebind(others) is False
    assert torch.equal(of.rows(), before)


def test_what_it_let_go_of_is_freed() -> None:
    tensors = [torch.randn(100, 100), torch.randn(10), torch.randn(300, 301)[:, 1:]]
    of = Plan([(str(k), t) for k, t in enumerate(tensors)])
    expected = of.rows().clone()
    kept = [t.clone() for t in tensors]
    of.columns()
    of.release()
    storages = [weakref.ref(t.untyped_storage()) for t in tensors]
    watched = [weakref.ref(t) for t in tensors]
    tensors.clear()
    assert [w() for w in [*watched, *storages]] == [None] * 6
    with pytest.raises(RuntimeError, match="call rebind first"):
        of.rows()
    assert of.rebind([kept[0], kept[1], kept[2].new_empty(300, 301)[:, 1:].copy_(kept[2])])
    assert torch.equal(of.rows(), expected)


def test_a_vector_of_another_plan_is_refused() -> None:
    of = Plan([("a", torch.randn(10))])
    with pytest.raises(ValueError, match="not a bucket vector of this plan"):
        of.fold(torch.zeros(2, dtype=torch.int64))


def test_the_number_of_threads_stays_that_of_the_user() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        of = plan(replica(torch.float32, seed=1))
        of.fold(of.rows())
        of.columns()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
