"""Scripts written for a framework, unchanged, under `harness run`: one rank fails on the way, the
verdict names it and its line. After a crash the run goes on from the framework's own checkpoint; a
script that sleeps by itself would sleep again, so that run is stopped.
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
    ("harm", "verdict", "action", "exit_code"),
    [("crash", "exception", "restart", 0), ("hang", "rank_stuck_outside_collective", "stop", 80)],
)
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_a_failure_is_named_and_mended(
    framework: str, harm: str, verdict: str, action: str, exit_code: int, tmp_path: Path
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed here")
    script = SCRIPTS / f"{framework}_train.py"
    done = _harness(tmp_path, "run", "--nproc-per-node", "2", "--run-name", "t", str(script), harm)
    assert done.returncode == exit_code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(_harness(tmp_path, "report", "t", "--json").stdout)
    assert [(i["class"], i["action"]) for i in report["incidents"]] == [(verdict, action)]
    incident = report["incidents"][0]
    assert incident["first_failing"] == [1]
    assert incident["where"]["file"].endswith(script.name)
    assert ("trained to step 12" in done.stdout) == (action == "restart")
