"""`make gpu-check` without a GPU: it says so, and its parts work on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check.py"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = checked()
    said = "gpu-check: skipped: there is no GPU here that PyTorch can use\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    wrong = checked("--only", "fp64")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: no part is called 'fp64'; see --list\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_part_is_carried_out_and_judged() -> None:
    done = checked("--device", "cpu", "--only", "bf16")
    assert done.returncode == 0, done.stdout
    line, last = done.stdout.splitlines()
    assert line.startswith("right bf16 ")
    assert ", mfu " in line
    assert " collectives recorded" in line
    assert last.startswith("gpu-check: 1 of 1 right, in ")
