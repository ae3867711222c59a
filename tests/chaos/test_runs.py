"""Whole runs, broken and judged. What is left of a run that is interrupted: nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.chaos.residue import MARK, marked

ROOT = Path(__file__).resolve().parents[2]
HARNESS = [sys.executable, "-m", "harness"]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
RUN = '[run]\nworkload = "ddp"\nnproc = 2\nsteps = 40\n'


def carried_out(tmp_path: Path, plan: str, *options: str) -> dict[str, Any]:
    (tmp_path / "plan.toml").write_text(plan)
    done = subprocess.run(
        [*HARNESS, "chaos", "run", "plan.toml", "--out", "out", "--json", *options],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["right"] else 1), done.stderr
    return found


@pytest.mark.slow
def test_a_killed_rank_ends_bit_equal(tmp_path: Path) -> None:
    found = carried_out(tmp_path, f'{RUN}[[fault]]\nkind = "kill"\nrank = 1\nstep = 7\n')
    assert found["wrong"] == []
    assert (found["said"], found["ranks"]) == ("killed_by_signal", [1])
    assert {check["name"]: check["ok"] for check in found["checks"]}["final"] is True


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", ["cp2", "ep2", "interleaved2", "zbv2", "hsdp4"])
def test_a_hang_and_a_kill_in_each_parallelism(workload: str, tmp_path: Path) -> None:
    """The first is a hang: rank 1 is stopped, then rank 0 killed in the attempt after it."""
    faults = [("stop", 1, 3, 0), ("kill", 0, 3, 1)]
    tables = [
        f'[[fault]]\nkind = "{kind}"\nrank = {rank}\nstep = {step}\nattempt = {attempt}\n'
        for kind, rank, step, attempt in faults
    ]
    run = f'[run]\nworkload = "{workload}"\nsteps = 14\n'
    found = carried_out(tmp_path, run + "".join(tables))
    assert found["wrong"] == []
    said = [(row["said"], row["ranks"], row["action"]) for row in found["rows"]]
    assert said == [("rank_frozen", [1], "restart"), ("killed_by_signal", [0], "restart")]
    assert {check["name"]: check["ok"] for check in found["checks"]}["final"] is True


@pytest.mark.slow
def test_a_fault_strikes_inside_an_unmodified_script(tmp_path: Path) -> None:
    plan = f'{RUN}[[fault]]\nkind = "collective_extra"\nrank = 0\nstep = 4\n'
    found = carried_out(tmp_path, plan, "--no-calm")
    assert found["wrong"] == []
    assert (found["said"], found["ranks"]) == ("collective_mismatch", [0])


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        f'{RUN.replace("40", "100_000")}[[fault]]\nkind = "slow"\nrank = 1\nstep = 2\n'
    )
    run = subprocess.Popen(
        [*HARNESS, "chaos", "run", "plan.toml", "--out", "out", "--no-calm"],
        cwd=tmp_path,
        env=ENVIRON,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "out" / "plan" / "runs" / "it" / "journal.jsonl"
    while not (journal.exists() and b'"FaultInjected"' in journal.read_bytes()):
        assert run.poll() is None
        time.sleep(0.05)
    (pid, *_) = [each for each in _children(run.pid)]
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (mark,) = [e.partition(b"=")[2].decode() for e in environ if e.startswith(f"{MARK}=".encode())]
    assert len(marked(mark)) >= 4
    run.send_signal(signal.SIGINT)
    assert run.wait(240) == 130
    assert marked(mark) == {}


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
