"""What comes back is what was saved, on every rank and in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import harness

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Launch


@pytest.mark.parametrize(
    ("layout", "ranks", "sync"),
    [("single", 1, False), ("ddp", 2, False), ("fsdp", 2, True)],
)
def test_resume_is_bit_identical(
    launch: Launch, tmp_path: Path, layout: str, ranks: int, sync: bool
) -> None:
    def run(name: str, until: int, saves: list[int]) -> list[dict[str, object]]:
        root = tmp_path / name
        done = launch(ranks, "train", root, layout=layout, until=until, saves=saves, sync=sync)
        assert done.codes == [0] * ranks, done.err
        return done.results

    whole = run("a", 6, [2, 4])
    half = run("b", 3, [3])
    rest = run("b", 6, [])
    assert [r["start"] for r in rest] == [3] * ranks
    assert [r["values"] for r in rest] == [{"position": 24}] * ranks
    for rank in range(ranks):
        assert half[rank]["losses"] + rest[rank]["losses"] == whole[rank]["losses"]
        for what in ("state", "lr", "at"):
            assert rest[rank][what] == whole[rank][what]


def test_another_layout_gets_the_same_tensors(launch: Launch, two_steps: Path) -> None:
    """2 -> 1 -> 4 (2 x 2) ranks, nothing trained in between."""
    saved = {
        key.removeprefix("optimizer.state.").removeprefix("model."): value
        for key, value in harness.Checkpointer(two_steps).tensors(2).items()
    }
    one = launch(1, "train", two_steps, layout="single-ln", until=2, saves=[])
    four = launch(4, "train", two_steps, layout="hsdp", until=2, saves=[])
    assert one.codes + four.codes == [0] * 5, one.err + four.err
    assert all(result["start"] == 2 for result in one.results + four.results)
    states = [result["state"] for result in one.results + four.results]
    assert len(states[0]) == len(saved)
    assert all(state == states[0] for state in states)
    said = (
        f"harness: checkpoint {two_steps / 'step-000002'}: loader, random_numbers of 2 ranks "
        "cannot be shared out to another layout; each rank keeps its own\n"
    )
    assert one.err == [said]
    assert all(result["lr"] == 0.005 for result in one.results + four.results)


def test_a_name_is_one_tensor(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "namesakes", tmp_path)
    assert done.codes == [0, 0], done.err
    reason = (
        "model.weight has other values on rank 1 than on rank 0; "
        "a name must mean one tensor on all ranks"
    )
    assert done.results == [{"outcome": "failed", "reason": reason, "present": 0}] * 2
    assert f"checkpoint of step 1 failed: {reason}; training goes on" in done.err[0]


def test_no_rank_waits_for_one_that_cannot(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "misfit_on_one", tmp_path)
    assert done.codes == [0, 0], done.err
    reason = "optimizer: a parameter of shape (2, 2) belongs to no module that was given"
    folder = tmp_path / "step-000002"
    words = {
        "save": f"on rank 1: {reason}",
        "load": f"checkpoint {folder} does not fit: {reason}",
    }
    assert done.results == [words, words]


def test_buffers_are_those_of_rank_0(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "buffers_of_rank_0", tmp_path)
    assert done.codes == [0, 0], done.err
    assert done.results == [{"mean": [0.0, 0.0]}] * 2


def test_ranks_save_at_the_same_steps_by_the_clock(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "by_the_clock", tmp_path / "ck")
    assert done.codes == [0, 0], done.err
    first, second = done.results
    assert first == second
    assert first["present"] == first["saved"][:0:-1]  # the newest three
