"""The script as a person meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.trainer.conftest import Launch

ROOT = Path(__file__).parents[2]


def script(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "trainer" / "train.py"), *argv],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env,
        check=False,
    )


@pytest.mark.slow
def test_one_process_without_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("to be or not to be, that is the question. " * 50)
    argv = "--layers 1 --d-model 16 --heads 2 --seq-len 16 --steps 2 --warmup 1 --peak-tflops 1"
    done = script(*argv.split(), "--data", str(tmp_path / "text"), "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()
    assert head.endswith("1 ranks on cpu: pp 1 x dp 1 (replicate 1 x shard 1) x tp 1")
    assert first.startswith("step 1/2 loss 5.5")
    assert second.split()[::2] == ["step", "loss", "lr", "grad_norm", "tok/s", "mfu"]


def test_refusals_cost_no_torch_and_one_line() -> None:
    done = script("--tp", "3", RANK="0", WORLD_SIZE="3", LOCAL_RANK="0")
    assert done.returncode == 2
    assert done.stderr == "error: --tp 3: heads 4 cannot be split into 3 equal parts\n"
    quiet = script("--tp", "3", RANK="1", WORLD_SIZE="3", LOCAL_RANK="1")
    assert (quiet.returncode, quiet.stderr, quiet.stdout) == (2, "", "")


def test_a_step_that_is_not_finite_is_not_taken(launch: Launch, tmp_path: Path) -> None:
    folder = ("--checkpoint-dir", str(tmp_path), "--checkpoint-every", "1")
    result = launch(1, "--lr", "1e30", "--clip", "0", *folder)
    assert result.codes == [1]
    assert "FloatingPointError: step " in result.err[0]
    assert "the parameters are still those of step" in result.err[0]
