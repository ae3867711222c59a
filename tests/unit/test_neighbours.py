"""Who computes whose micro-batch again."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.worker.audits.neighbours import Pair, pair_of


def pairs(members: Sequence[int], per_node: int, turn: int) -> dict[int, Pair]:
    """Of all members, on nodes of `per_node` ranks."""
    found = {}
    for rank in members:
        first = rank // per_node * per_node
        found[rank] = pair_of(members, rank, range(first, first + per_node), turn)
    return found


LAYOUTS = st.tuples(
    st.integers(1, 6), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.integers(1, 1 << 40)
)


@given(LAYOUTS)
def test_each_batch_has_one_reader_and_both_agree(layout: tuple[int, int, int, int]) -> None:
    nodes, per_node, stride, turn = layout
    members = range(0, nodes * per_node, stride if per_node % stride == 0 else 1)
    found = pairs(members, per_node, turn)
    assert sorted(pair.owner for pair in found.values()) == list(members)
    assert all(found[pair.owner].reader == rank for rank, pair in found.items())
    sizes = {pair.size for pair in found.values()}
    assert len(sizes) == 1


@pytest.mark.parametrize(("turn", "far"), [(1, True), (2, True), (3, False), (6, False)])
def test_rounds_go_in_turns_within_nodes_and_between_them(turn: int, far: bool) -> None:
    found = pairs(range(8), 4, turn)
    assert all((pair.owner // 4 != rank // 4) == far for rank, pair in found.items())
    strided = pairs(range(8), 4, turn << 7)  # a rank that looks at every 128th round only
    assert strided == found


def test_one_node_or_one_rank_a_node_always_does_the_same() -> None:
    assert {pair_of(range(4), 0, range(4), turn).owner for turn in range(1, 9)} == {3}
    assert {pair_of([0, 5], 5, [5], turn).owner for turn in range(1, 9)} == {0}
    assert pair_of([3], 3, range(8), 1) == Pair(3, 3, 1)
