"""A save that fails leaves no manifest, is said aloud, and never stops training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import harness
from harness.errors import UsageError
from harness.sdk.checkpoint import checkpointer
from harness.sdk.checkpoint.writing import write

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Launch


def test_a_full_disk_on_one_rank(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "full_disk", tmp_path)
    assert done.codes == [0, 0], done.err
    for result in done.results:
        outcome, reason = result["failed"]
        assert outcome == "failed"
        assert "File too large" in reason
        assert result["present"] == []
        assert result["saved"] == "saved"
        assert result["left"] == ["step-000002"]
    again = "; training goes on, the next save tries again"
    assert "checkpoint of step 1 failed on rank 1: " in done.err[1]
    assert done.err[1].rstrip().endswith(again)
    assert "checkpoint of step 1 failed on rank 0: rank 1 could not write: " in done.err[0]


def test_a_rank_that_dies_in_the_middle(launch: Launch, tmp_path: Path) -> None:
    done = launch(2, "lost_rank", tmp_path)
    assert done.codes[0] == 0, done.err
    assert done.codes[1] < 0
    assert done.results[0]["reason"] == "nothing more came from ranks [1] for 0.2 s"
    assert done.results[0]["present"] == [1]


def test_a_kill_at_any_byte_leaves_the_last_good_one(launch: Launch, tmp_path: Path) -> None:
    done = launch(1, "campaign", tmp_path, rounds=6, seed=1)
    assert done.codes == [0], done.err
    assert done.results[0]["killed"] == 6, done.results


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_kills_at_any_byte(launch: Launch, tmp_path: Path) -> None:
    done = launch(1, "campaign", tmp_path, rounds=200, seed=2)
    assert done.codes == [0], done.err
    assert (done.results[0]["rounds"], done.results[0]["killed"]) == (200, 200)


def test_a_save_under_way_is_not_overtaken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being written stays what it was at its step, and the next one is left out aloud."""
    go_on = threading.Event()

    def slowly(*given: Any) -> Any:
        go_on.wait()
        return write(*given)

    monkeypatch.setattr(checkpointer, "write", slowly)
    ck = harness.Checkpointer(tmp_path, wait=0.0)
    weight = nn.Parameter(torch.ones(2_000))
    model = nn.ParameterDict({"w": weight})
    first = ck.save(1, model=model)
    with torch.no_grad():
        weight.fill_(2.0)
    second = ck.save(2, model=model)
    assert (first.outcome, second.outcome) == ("writing", "skipped")
    go_on.set()
    done = ck.wait()
    assert done is not None
    assert (done.step, done.outcome) == (1, "saved")
    assert bool((ck.tensors(1)["model.w"] == 1.0).all())
    assert "checkpoint of step 2 skipped: the save of step 1 is still being written after 0 s" in (
        capsys.readouterr().err
    )
    assert ck.save(3, sync=True, model=model).outcome == "saved"
    assert [found.step for found in ck.present()] == [3, 1]


class Broken:
    def state_dict(self) -> dict[str, object]:
        raise RuntimeError("the loader is closed")

    def load_state_dict(self, state: dict[str, object]) -> None: ...


def test_what_a_script_raises_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ck = harness.Checkpointer(tmp_path)
    done = ck.save(1, loader=Broken())
    assert (done.outcome, done.reason) == ("failed", "the loader is closed")
    assert "checkpoint of step 1 failed: the loader is closed" in capsys.readouterr().err


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    ck = harness.Checkpointer(tmp_path / "file" / "ck", sync=True)
    with pytest.raises(UsageError, match="cannot be read: Not a directory"):
        ck.load(model=nn.Linear(1, 1))
    done = ck.save(1, model=nn.Linear(1, 1))
    assert done.outcome == "failed"
    assert "Not a directory" in capsys.readouterr().err


def test_wrong_use_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="keep must be at least 1, not 0"):
        harness.Checkpointer(tmp_path, keep=0)
    ck = harness.Checkpointer(tmp_path)
    with pytest.raises(UsageError, match="step -1 is negative"):
        ck.save(-1)
    with pytest.raises(UsageError, match="'rank' is not a name for a thing to save"):
        ck.save(1, rank=3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="WORLD_SIZE is 4, but there is no process group"):
        harness.Checkpointer(tmp_path).load()


def test_an_optimizer_needs_its_model(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 3).parameters(), lr=0.1)
    done = harness.Checkpointer(tmp_path).save(1, optimizer=optimizer)
    assert done.reason == (
        "optimizer: a parameter of shape (3, 2) belongs to no module that was given"
    )
