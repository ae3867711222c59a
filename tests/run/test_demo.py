"""The demo in small: two ranks, one of them killed, the same parameters in the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_rank_changes_nothing_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    demo = ["--nproc-per-node", "2", "--kill-rank", "1", "--kill-step", "5"]
    layout = ["--dp", "2", "--tp", "1", "--pp", "1", "--steps", "20", "--warmup", "2"]
    layout += ["--checkpoint-every", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "harness.chaos.demo", *demo, "--", *layout],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error[killed_by_signal]: rank 1" in done.stderr
    summary = done.stdout[done.stdout.index("=== summary") :]
    assert "attempts              2" in summary
    assert "killed_by_signal, rank 1" in summary
    assert "steps lost" in summary
    assert "identical" in summary
