"""The order of the data depends on the seed and the position, on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.trainer.config import ConfigError
from harness.trainer.data import Batches, corpus

TEXT = bytes(range(256)) * 8


def batches(seed: int = 0, text: bytes = TEXT) -> Batches:
    return Batches(text, seq_len=16, global_batch=8, seed=seed)


def test_the_corpus_is_the_text_that_ships_with_python() -> None:
    text = corpus()
    assert text == corpus()
    assert len(text) > 300_000
    assert b"The following sections" in text or b"expression" in text
    assert b"\n\n\n" not in text
    assert b" \n" not in text


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    assert corpus(str(tmp_path / "a.txt")) == TEXT


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_ranks_split_the_global_batch(dp: int) -> None:
    inputs, targets = batches().batch(24, 0, 1)
    parts = [batches().batch(24, rank, dp) for rank in range(dp)]
    assert torch.equal(torch.cat([x for x, _ in parts]), inputs)
    assert torch.equal(torch.cat([y for _, y in parts]), targets)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_fresh_reader_gives_the_same_batch_at_once() -> None:
    walked = batches()
    for position in range(0, 400, 8):
        walked.batch(position, 0, 1)
    assert torch.equal(walked.batch(400, 0, 1)[0], batches().batch(400, 0, 1)[0])
    assert not torch.equal(walked.batch(400, 0, 1)[0], batches(seed=1).batch(400, 0, 1)[0])


def test_an_epoch_sees_every_window_once_and_the_next_is_ordered_anew() -> None:
    text = torch.randint(0, 256, (16 * 40 + 1,), generator=torch.Generator().manual_seed(0))
    source = batches(text=bytes(text.tolist()))
    epochs = [
        torch.cat([source.batch(start + i, 0, 1)[0] for i in range(0, 40, 8)]) for start in (0, 40)
    ]
    rows = [sorted(map(tuple, epoch.tolist())) for epoch in epochs]
    assert rows[0] == rows[1] == sorted(map(tuple, text[:-1].view(40, 16).tolist()))
    assert not torch.equal(epochs[0], epochs[1])


def test_what_cannot_be_read_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data /nowhere: No such file"):
        corpus("/nowhere")
    with pytest.raises(ConfigError, match="16 bytes of text, --seq-len 16 needs more"):
        batches(text=TEXT[:16])
