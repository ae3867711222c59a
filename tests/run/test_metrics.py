"""Metrics of a real run: of its controller, and of its agent's own ranks."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow

Numbers = dict[tuple[str, str, str], float]

SCRIPT = """\
import os, pathlib, time
import torch
import harness
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 100_000):
    weight.grad = torch.ones(2)
    optimizer.step()
    harness.progress(step, loss=0.5, tokens=10 * step)
    if pathlib.Path("enough").exists():
        break
    time.sleep(0.02)
"""


def numbers(where: str) -> Numbers:
    """By name, rank and phase."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=240) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("rank", ""), sample.labels.get("phase", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def not_told(agent: Numbers, told: Numbers) -> list[str]:
    """What is missing yet of that which is told for good, once it is known."""
    checks = {
        "step": agent.get(("harness_rank_step", "1", ""), 0) >= 3,
        "up": agent.get(("harness_rank_up", "0", "")) == 1,
        "loss": agent.get(("harness_rank_loss", "1", "")) == 0.5,
        "memory": agent.get(("harness_rank_memory_bytes", "0", ""), 0) > 1 << 20,
        "CPU": agent.get(("harness_rank_cpu_seconds_total", "0", ""), 0) > 0,
        "phase": agent.get(("harness_rank_phase", "1", "step")) == 1,
        "step of the run": told.get(("harness_run_step", "", ""), 0) > 0,
        "attempts": told.get(("harness_attempts_total", "", "")) == 1,
    }
    return [name for name, there in checks.items() if not there]


def test_a_run_and_its_ranks_are_told_while_they_live(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    line = ["run", "--nproc-per-node", "2", "--run-name", "told", "--metrics-port", "0", "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "harness", *line],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "runs" / "told" / "metrics"
    try:
        deadline = time.monotonic() + 240
        missing = ["everything"]
        while missing:
            assert time.monotonic() < deadline, missing
            time.sleep(0.05)
            files = {file.stem: file for file in folder.glob("*.json")}
            if {"controller", "agent0"} <= files.keys():
                targets = {n: json.loads(f.read_text())[0]["targets"][0] for n, f in files.items()}
                agent, told = numbers(targets["agent0"]), numbers(targets["controller"])
                missing = not_told(agent, told)
    finally:
        (tmp_path / "enough").touch()
        _, said = run.communicate(timeout=240)
    assert run.returncode == 0, said
    assert "harness: metrics at http://127.0.0.1:" in said
    assert list(folder.iterdir()) == []  # nobody is sent to a door that is closed
