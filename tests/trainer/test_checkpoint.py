"""A checkpoint is complete or does not count, and what does not count is said aloud."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import harness
from harness.trainer import compare, train
from harness.trainer.config import ConfigError
from harness.trainer.flags import parse

if TYPE_CHECKING:
    from tests.trainer.conftest import Launch

SMALL = ("--layers", "1", "--d-model", "16", "--heads", "2", "--ffn", "32")


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    return (*SMALL, "--checkpoint-dir", str(tmp_path / "ck"), "--checkpoint-every", "1")


def flip_a_byte(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(-20, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-20, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))


def test_the_last_ones_are_kept(launch: Launch, flags: tuple[str, ...], tmp_path: Path) -> None:
    result = launch(1, *flags, "--checkpoint-keep", "2")
    assert result.codes == [0], result.err
    newest, before = harness.Checkpointer(tmp_path / "ck").present()
    assert (newest.step, before.step) == (5, 4)
    assert newest.manifest is not None
    assert newest.manifest.values["position"] == 40
    assert newest.manifest.mesh == {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "tp": 1}


def test_damage_is_passed_over_aloud(
    launch: Launch, flags: tuple[str, ...], tmp_path: Path
) -> None:
    root = tmp_path / "ck"
    assert launch(2, *flags, "--checkpoint-keep", "5").codes == [0, 0]
    reference = compare.read(root, 5)
    (root / "step-000005" / "manifest.json").unlink()
    os.truncate(root / "step-000004" / "__1_0.distcp", 100)
    flip_a_byte(root / "step-000003" / "__0_0.distcp")
    (root / "step-000006.tmp-1234").mkdir()
    result = launch(2, *flags)
    assert result.codes == [0, 0], result.err
    said = result.err[0]
    assert "step-000006.tmp-1234 passed over: the save was interrupted" in said
    assert "step-000005 passed over: no manifest, the save was interrupted" in said
    assert "step-000004 passed over: __1_0.distcp has 100 bytes, not" in said
    assert "step-000003 passed over: __0_0.distcp is not what was written (checksum)" in said
    assert "resumed after step 2" in result.out[0]
    assert not (root / "step-000006.tmp-1234").exists()
    again = compare.compare(reference, compare.read(root, 5), step=5)
    assert again.differences == []


def test_other_model_is_refused_before_it_starts(
    launch: Launch, flags: tuple[str, ...], tmp_path: Path
) -> None:
    assert launch(1, *flags).codes == [0]
    result = launch(2, *flags, "--d-model", "32")
    assert result.codes == [2, 2]
    root = tmp_path / "ck"
    assert result.err[0] == (
        f"error: --checkpoint-dir {root}: step 5 was saved with d_model 16, this run has 32; "
        "use that or another folder\n"
    )
    assert result.err[1] == ""


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--checkpoint-dir .*: Not a directory"):
        train.check_folder(parse(["--checkpoint-dir", str(tmp_path / "file" / "x")]))


def test_compare(
    launch: Launch, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, empty = str(tmp_path / "ck"), str(tmp_path / "other"), str(tmp_path / "empty")
    assert launch(1, *flags).codes == [0]
    assert launch(2, *flags, "--checkpoint-dir", b, "--seed", "1").codes == [0, 0]
    Path(empty).mkdir()

    def told(*argv: str) -> tuple[int, str, str]:
        code = compare.main(list(argv))
        text = capsys.readouterr()
        return code, text.out, text.err

    assert told(a, a) == (0, "identical: 48 tensors, 10,800 parameters\n", "")
    code, out, _ = told(a, b)
    assert code == 1
    assert out.startswith("different: ")
    assert "values differ, at most by" in out
    code, out, _ = told(a, b, "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["identical"], found["step"]) == (1, 1, False, 5)
    assert found["differences"][0]["max_abs"] > 0
    assert told(a, str(tmp_path / "no")) == (2, "", f"error: {tmp_path / 'no'}: no such folder\n")
    assert told(a, empty) == (2, "", f"error: {empty}: no complete checkpoint\n")
    assert told(a, a, "--step", "9") == (2, "", f"error: {a}: no checkpoint of step 9\n")
