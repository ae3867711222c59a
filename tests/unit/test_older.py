"""Which checkpoint of a script's own comes before the one that it could not load."""

from pathlib import Path

import pytest

from harness.worker.files import _older

NAMES = (
    "step_5.pt", "step_10.pt", "step_9.txt", "shard1_step5.pt", "shard1_step10.pt",
    "shard0_step10.pt", "ckpt5_rank2.pt", "ckpt10_rank1.pt", "ckpt10_rank2.pt", "data1.pt",
    "data2.pt", "epoch_1.pt", "epoch_2.pt", "model.pt",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("step_10.pt", "step_5.pt"),
        ("step_5.pt", ""),
        ("shard1_step10.pt", "shard1_step5.pt"),
        ("shard0_step10.pt", ""),
        ("ckpt10_rank2.pt", "ckpt5_rank2.pt"),
        ("data2.pt", ""),
        ("epoch_2.pt", "epoch_1.pt"),
        ("model.pt", ""),
    ],
)
def test_the_one_before_as_rank_2_sees_it(tmp_path: Path, name: str, older: str) -> None:
    for each in NAMES:
        (tmp_path / each).touch()
    assert _older(str(tmp_path / name), 2) == (str(tmp_path / older) if older else "")
    assert _older(str(tmp_path / "data2.pt"), 0) == str(tmp_path / "data1.pt")
