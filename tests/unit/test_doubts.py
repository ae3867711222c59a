"""What ranks find wrong with their own numbers, and whom that accuses."""

from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import doubts
from harness.sightings import Doubt
from harness.state import AttemptState, digesting

WORLD = 4


class Ranks:
    def __init__(self) -> None:
        self.attempt = AttemptState(
            index=0, world_size=WORLD, ranks={}, nodes={}, why="", started_ns=0
        )
        self.attempt.surveyed_ns = 60_000_000_000
        self._ns = 1_000_000_000

    def say(self, rank: int, check: str, subject: str = "layer.weight", **fields: Any) -> None:
        self._ns += 1_000_000
        doubt = Doubt(check=check, subject=subject, **{"step": 7, "at_ns": self._ns, **fields})
        event = e.DoubtRaised(rank=rank, doubt=doubt)
        digesting.note(self.attempt, ("agent:0", self._ns), event)

    @property
    def found(self) -> list[tuple[str, tuple[int, ...], str]]:
        return [(f.verdict, f.ranks, f.confidence) for f in doubts.find(self.attempt)]


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_the_first_rank_that_was_not_finite_is_named_and_not_all_of_them(ranks: Ranks) -> None:
    ranks.say(2, "gradient", "layers.3.mlp", count=30, settled=False)
    ranks.say(2, "gradient", "layers.3.mlp", count=30)
    for rank in range(WORLD):
        ranks.say(rank, "gradient", "head", count=31)
    assert ranks.found == [("nonfinite", (2,), "proven")]
    assert "layers.3.mlp" in doubts.find(ranks.attempt)[0].cause


def test_all_ranks_at_once_are_the_program(ranks: Ranks) -> None:
    for rank in range(WORLD):
        ranks.say(rank, "gradient", count=30)
    assert ranks.found == [("nonfinite", (0, 1, 2, 3), "proven")]


def test_what_an_optimizer_never_used_is_no_fault_of_a_run_that_goes_on(ranks: Ranks) -> None:
    ranks.say(2, "gradient", count=30, settled=False)
    assert ranks.found == []
    assert [f.ranks for f in doubts.not_finite(ranks.attempt)] == [(2,)]


def test_a_large_norm_is_evidence_and_no_verdict(ranks: Ranks) -> None:
    ranks.say(2, "norm", shows="norm 1e+09 before the reduction, 3 at most until now")
    assert ranks.found == []
    ranks.say(2, "gradient", count=30)
    assert "1e+09" in doubts.find(ranks.attempt)[0].reason


def test_nothing_is_said_while_others_may_still_find_the_same(ranks: Ranks) -> None:
    ranks.say(2, "recompute", "block.1", again="second")
    ranks.attempt.surveyed_ns = ranks._ns + 1_000_000
    assert ranks.found == []
    ranks.attempt.gone.update(range(WORLD))
    assert ranks.found


@pytest.mark.parametrize(("again", "confidence"), [("first", "likely"), ("neither", "possible")])
def test_one_block_of_one_rank_is_a_device(ranks: Ranks, again: str, confidence: str) -> None:
    ranks.say(2, "recompute", "block.1", again=again, looks=9, failed=1)
    assert ranks.found == [("silent_data_corruption", (2,), confidence)]


def test_a_block_of_many_ranks_or_of_every_time_is_a_program(ranks: Ranks) -> None:
    ranks.say(2, "recompute", "block.1", looks=3, failed=3)
    assert ranks.found == [("nondeterminism", (2,), "likely")]
    ranks.say(0, "recompute", "block.5", looks=9, failed=1)
    assert ranks.found == [("nondeterminism", (0, 2), "likely")]


def replayed(ranks: Ranks, by: int, peer: int, **fields: Any) -> None:
    told = {"again": "second", "ring": WORLD, "looks": 9, "failed": 1, "differ": 3, "total": 40}
    ranks.say(by, "replay", peer=peer, **{**told, **fields})


def test_a_pair_is_split_by_the_second_replay(ranks: Ranks) -> None:
    replayed(ranks, 3, 2)
    assert ranks.found == [("silent_data_corruption", (2,), "likely")]
    ranks = Ranks()
    replayed(ranks, 3, 2, again="first")
    assert ranks.found == [("silent_data_corruption", (3,), "likely")]


def test_a_device_that_always_errs_is_in_two_pairs(ranks: Ranks) -> None:
    replayed(ranks, 3, 2, looks=1)
    replayed(ranks, 2, 1, looks=1)
    assert ranks.found == [("silent_data_corruption", (2,), "likely")]


def test_two_ranks_cannot_outvote_each_other(ranks: Ranks) -> None:
    replayed(ranks, 1, 0, ring=2)
    replayed(ranks, 0, 1, ring=2)
    assert ranks.found == [("silent_data_corruption", (0, 1), "possible")]


def test_pairs_without_a_common_rank_are_a_program(ranks: Ranks) -> None:
    replayed(ranks, 1, 0)
    replayed(ranks, 3, 2)
    assert ranks.found == [("nondeterminism", (0, 1, 2, 3), "likely")]


def test_what_never_agreed_anywhere_is_not_comparable(ranks: Ranks) -> None:
    for by in range(WORLD):
        replayed(ranks, by, (by - 1) % WORLD, looks=1)
    assert ranks.found == []


def test_a_shard_that_changed_by_itself_and_one_that_all_have_changed(ranks: Ranks) -> None:
    ranks.say(1, "at rest", "parameters", tensors=("w",), differ=1, total=6)
    assert ranks.found == [("silent_data_corruption", (1,), "proven")]
    ranks.say(0, "at rest", "parameters", tensors=("w",), differ=1, total=6)
    assert ranks.found == []


def test_state_of_two_optimizers_that_count_alike_is_told_apart(ranks: Ranks) -> None:
    for name in ("generator", "critic"):
        ranks.say(1, "at rest", "optimizer state", count=4, tensors=(name,), differ=1, total=20)
    assert [each.doubt.tensors for each in ranks.attempt.doubts.of("at rest")] == [
        ("generator",),
        ("critic",),
    ]


def test_many_tensors_of_one_rank_were_written_by_its_program(ranks: Ranks) -> None:
    ranks.say(1, "at rest", "parameters", tensors=("w", "v"), differ=6, total=6)
    assert ranks.found == []


def test_what_is_known_to_be_clean_is_before_the_first_doubt(ranks: Ranks) -> None:
    assert ranks.attempt.clean_ns is None
    ranks.say(2, "norm")
    assert ranks.attempt.clean_ns is None
    ranks.say(2, "recompute", clean_ns=500)
    assert ranks.attempt.clean_ns == 500


def test_a_wrong_update_of_one_rank(ranks: Ranks) -> None:
    fields = {"again": "second", "differ": 1, "total": 4096, "looks": 40}
    ranks.say(2, "update", shows="[3] is 2 and should be 0.5", **fields)
    assert ranks.found == [("silent_data_corruption", (2,), "likely")]
    (finding,) = doubts.find(ranks.attempt)
    assert finding.cause == (
        "rank 2 updated layer.weight wrongly in step 8: [3] is 2 and should be 0.5"
    )
    ranks.say(0, "update", **fields)
    assert ranks.found == [("nondeterminism", (0, 2), "likely")]
