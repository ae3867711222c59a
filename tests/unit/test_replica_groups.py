"""Replicas that only the program's own sums declare, in several groups of one tensor: two axes of
tensor and data parallelism by hand. Rank 2 d + t; ranks (0, 2) and (1, 3) sum what they have."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.sightings import DigestPart
from harness.state.replicas import Suspicion
from harness.state.rerun import pending
from tests.unit.test_replicas import WORLD, Ranks, part

PAIRS = ((0, 2), (1, 3))
Values = Callable[[int, int], int]
"""By count and rank."""


def parts(name: str, number: int = 1, **changes: Any) -> list[DigestPart]:
    known = {"how": "hand", "tensors": 1, "name": name, "part": number, "clock": 0, **changes}
    return [part(members=pair, ranks=pair, **known) for pair in PAIRS]


def shard(count: int, rank: int) -> int:
    return 100 * count + rank % 2


def whole(count: int, rank: int) -> int:
    return 100 * count


def looked(values: Values, counts: range, odd: int, since: int) -> Ranks:
    """What rank `odd` has is other at and after count `since`."""
    ranks = Ranks(*parts("weight"))
    for count in counts:
        told = {rank: values(count, rank) for rank in range(WORLD)}
        if count >= since:
            told[odd] += 7
        ranks.look(count, told)
    return ranks


def only(ranks: Ranks) -> Suspicion:
    (known,) = ranks.attempt.replicas.suspicions
    return known


def test_a_shard_on_one_rank_is_one_of_two_and_can_be_computed_again() -> None:
    known = only(ranks := looked(shard, range(3, 43, 2), odd=3, since=33))
    assert known.group == {1, 3}
    assert ranks.said() == [("silent_data_corruption", (1, 3), "possible")]
    (rerun,) = pending(ranks.attempt.replicas.tracks.values(), [known], 0)
    assert set(rerun.earlier.anchors) == {(1, shard(count, 1)) for count in range(3, 33, 2)}
    assert {count for _, count in rerun.earlier.differences} <= set(range(33, 43))
    again = known.track.part
    for count in (29, 33):  # the attempt after it
        clean = Ranks(*parts("weight"))
        clean.look(count, {rank: shard(count, rank) for rank in range(WORLD)})
        (look,) = [track.last for track in clean.attempt.replicas.tracks.values()]
        rerun.take(again, look)
    assert rerun.right == {1}


def test_what_tensor_parallelism_leaves_whole_has_witnesses() -> None:
    ranks = looked(whole, range(3, 43, 2), odd=3, since=33)
    assert only(ranks).group == {0, 1, 2, 3}
    assert ranks.said() == [("silent_data_corruption", (3,), "likely")]
    early = looked(whole, range(3, 15, 2), odd=3, since=7)
    assert not early.attempt.replicas.suspicions or only(early).group == {1, 3}


@pytest.mark.parametrize("same", [True, False])
def test_parts_of_a_flat_sum_count_once_their_gradients_were_alike(same: bool) -> None:
    """Sizes may fit by chance."""
    ranks = Ranks(*parts("a", marks=("flat",)), *parts("a", 2, site="gradients", marks=("flat",)))
    for count in range(1, 12):
        for number in (2, 1):
            value = whole if same and number == 2 else lambda count, rank: 100 * count + rank
            ranks.look(count, {r: value(count, r) for r in range(WORLD)}, number=number)
    assert [known.kind for known in ranks.attempt.replicas.suspicions] == ["apart"] * same


def test_who_steps_with_another_gradient_than_was_summed_is_named_alone() -> None:
    ranks = Ranks(part(how="hand", tensors=1, name="weight", site="gradients", clock=0))
    for count in range(1, 9):
        ranks.look(count, {rank: 100 * count + (rank == 1) for rank in range(WORLD)})
    (finding,) = ranks.found()
    assert (finding.verdict, finding.ranks) == ("replica_divergence", (1,))
    assert "than ranks 0,2-3, which agree" in finding.cause


@pytest.mark.parametrize(("odd", "named"), [((2,), (2,)), ((1, 2, 3), (0, 1, 2, 3))])
def test_who_makes_something_else_of_the_same_gradient(
    odd: tuple[int, ...], named: tuple[int, ...]
) -> None:
    known: dict[str, Any] = {"how": "hand", "tensors": 1, "name": "weight", "clock": 0}
    ranks = Ranks(part(**known), part(part=2, site="gradients", **known))
    for step in range(1, 9):
        ranks.look(step, dict.fromkeys(range(WORLD), step), number=2)
        for count in (2 * step, 2 * step + 1):
            spoilt = count > 2
            ranks.look(count, {r: 100 * (count // 2) + spoilt * r * (r in odd) for r in range(4)})
    (finding,) = ranks.found()
    assert (finding.verdict, finding.ranks) == ("replica_divergence", named)
    assert "though its gradient is the same on all" in finding.cause
