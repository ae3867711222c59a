"""What `harness plan` draws is what the trainer's schedules do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.plan.orders import SCHEDULES, Schedule, Work, order, place_of
from harness.trainer import pipeline
from harness.trainer.config import SCHEDULES as TRAINED

HALVES = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
SEVERAL = ("interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v")


def torchs(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Any]:
    """(kind, micro-batch, stage) of one rank, from PyTorch's own class."""
    made = SimpleNamespace(
        pp_group_size=ranks,
        num_stages=ranks * chunks,
        n_local_stages=chunks,
        microbatches_per_round=ranks,
        _n_microbatches=micro_batches,
        _stages=[None] * chunks,
    )
    actions = pipeline.SCHEDULES[schedule]._calculate_single_rank_operations(made, rank)
    found = []
    for action in actions:
        for one in () if action is None else action.sub_actions or (action,):
            kind = HALVES[one.computation_type.name]
            found.append((kind, one.microbatch_index, one.stage_index))
    return found


@pytest.mark.parametrize("schedule", SEVERAL)
@pytest.mark.parametrize(("ranks", "turns"), [(1, 2), (2, 2), (3, 3), (4, 2)])
def test_the_order_is_pytorchs(schedule: Schedule, ranks: int, turns: int) -> None:
    chunks, micro_batches = 2, ranks * turns
    for rank in range(ranks):

        def placed(work: Work, rank: int = rank) -> tuple[str, int, int]:
            kind, i, chunk = work
            return kind, i, place_of(schedule, rank, chunk, ranks)

        ours = [placed(work) for work in order(schedule, rank, ranks, micro_batches, chunks)]
        assert ours == torchs(schedule, rank, ranks, micro_batches, chunks)


def test_every_schedule_of_the_trainer_can_be_drawn() -> None:
    assert set(SCHEDULES) == set(TRAINED) == set(pipeline.SCHEDULES)
