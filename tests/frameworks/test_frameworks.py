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
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{SCRIPTS}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=400,
    )


def _command(framework: str, harm: str, folder: Path) -> list[str]:
    """What is typed after `harness run`, with the files that it names in `folder`."""
    if framework == "deepspeed_style":
        (folder / "ds.json").write_text(
            '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"lr": 0.001}}'
        )
        script = str(SCRIPTS / "deepspeed_style_train.py")
        return [script, "--deepspeed", "--deepspeed_config", "ds.json", harm]
    if framework == "titan_style":
        (folder / "train.toml").write_text(
            "[training]\nsteps = 12\n[checkpoint]\nfolder = 'outputs'\ninterval = 4\n"
            f"[experiment]\nharm = '{harm}'\n"
        )
        return ["-m", "titan_style.train", "--job.config_file", "train.toml"]
    return [str(SCRIPTS / f"{framework}_train.py"), harm]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("harm", "verdict", "action", "exit_code"),
    [("crash", "exception", "restart", 0), ("hang", "rank_stuck_outside_collective", "stop", 80)],
)
@pytest.mark.parametrize(
    "framework", ["plain", "deepspeed_style", "titan_style", "lightning", "accelerate"]
)
def test_a_failure_is_named_and_mended(
    framework: str,
    harm: str,
    verdict: str,
    action: str,
    exit_code: int,
    tmp_path: Path,
) -> None:
    if framework in ("lightning", "accelerate") and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed here")
    command = _command(framework, harm, tmp_path)
    done = _harness(tmp_path, "run", "--nproc-per-node", "2", "--run-name", "t", *command)
    assert done.returncode == exit_code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(_harness(tmp_path, "report", "t", "--json").stdout)
    assert [(i["class"], i["action"]) for i in report["incidents"]] == [(verdict, action)]
    incident = report["incidents"][0]
    assert incident["first_failing"] == [1]
    assert incident["where"]["file"].endswith("train.py")
    assert ("trained to step 12" in done.stdout) == (action == "restart")
