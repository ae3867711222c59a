"""Scripts written for a framework, unchanged, under `harness run`: one rank fails on the way, the
verdict names it and its line, and the run goes on from the framework's own checkpoint to its end.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]


def _harness(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=400,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("harm", "verdicts"),
    [("crash", {"exception"}), ("hang", {"rank_stuck_outside_collective"})],
)
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_a_failure_is_named_and_mended(
    framework: str, harm: str, verdicts: set[str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed here")
    script = SCRIPTS / f"{framework}_train.py"
    done = _harness(tmp_path, "run", "--nproc-per-node", "2", "--run-name", "t", str(script), harm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained to step 12" in done.stdout
    report: dict[str, Any] = json.loads(_harness(tmp_path, "report", "t", "--json").stdout)
    assert [len(report["attempts"]), len(report["incidents"])] == [2, 1]
    incident = report["incidents"][0]
    assert incident["class"] in verdicts
    assert incident["first_failing"] == [1]
    assert incident["action"] == "restart"
    assert incident["where"]["file"].endswith(script.name)
