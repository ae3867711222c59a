"""Files of tokens: made, mapped, and refused when they are not whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from harness.trainer import data, tokens
from harness.trainer.config import ConfigError

TEXT = "Der Fluß fließt. The river flows on and on, and the river never ends. " * 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "a.txt"


def test_bytes(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = text.with_name("a.tokens")
    assert tokens.main([str(text), str(text), "--out", str(out)]) == 0
    assert f"{2 * text.stat().st_size:,} tokens, one a byte" in capsys.readouterr().out
    found = data.tokens(str(out), 256)
    assert bytes(found.tolist()) == text.read_bytes() * 2
    assert sorted(file.name for file in text.parent.iterdir()) == ["a.tokens", "a.txt"]
    sized = {"seq_len": 16, "global_batch": 4, "seed": 0}
    plain = data.Batches(text.read_bytes() * 2, **sized).batch(8, 1, 2)  # type: ignore[arg-type]
    assert all(
        torch.equal(*pair)
        for pair in zip(plain, data.Batches(found, **sized).batch(8, 1, 2), strict=True)  # type: ignore[arg-type]
    )


def test_bpe(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = pytest.importorskip("tokenizers")
    out = text.with_name("a.tokens")
    assert tokens.main([str(text), "--out", str(out), "--tokenizer", "bpe", "--vocab", "280"]) == 0
    assert f"--data {out} --vocab 280" in capsys.readouterr().out
    found = data.tokens(str(out), 280)
    assert found.dtype == torch.uint16
    assert len(found) < len(TEXT)
    assert package.Tokenizer.from_file(f"{out}.json").decode(found.tolist()) == TEXT
    with pytest.raises(ConfigError, match=r"--vocab 256: --data .* has 280 kinds of tokens"):
        data.tokens(str(out), 256)


@pytest.mark.parametrize("vocab", [256, 257, 2**16, 2**16 + 1])
def test_tokens_are_as_wide_as_they_must_be(tmp_path: Path, vocab: int) -> None:
    file = tmp_path / "t"
    values = [0, 1, vocab - 1, 7]
    assert tokens.write(file, [values[:2], values[2:]], vocab) == 4
    assert tokens.mapped(file).values.long().tolist() == values
    assert tokens.mapped(file).vocab == vocab


def test_what_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t"
    tokens.write(file, [[1, 2, 3]], 1000)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"37 bytes are not those of 3 tokens"):
        data.tokens(str(file), 1000)
    os.truncate(file, 20)
    with pytest.raises(ConfigError, match=r"the header is cut off; make it again"):
        data.tokens(str(file), 1000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere", "--out", "x"], "error: /nowhere: No such file or directory\n"),
        (["{text}", "--out", "/nowhere/x"], "error: --out /nowhere/x: no such folder\n"),
        (["{text}", "--out", "x", "--vocab", "9"], "error: --vocab 9: bytes have 256\n"),
        (
            ["{text}", "--out", "x", "--tokenizer", "bpe", "--vocab", "9"],
            "error: --vocab 9: byte-level BPE has at least 256\n",
        ),
    ],
)
def test_wrong_arguments_get_one_line(
    arguments: list[str], said: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tokens.main([word.format(text=text) for word in arguments]) == 2
    assert capsys.readouterr().err == said
    assert not Path("x").exists()
