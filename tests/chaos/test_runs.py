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
RUN = '[run]\nworkload = "ddp"\nnproc = 2\nsteps = 16\n'


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
def test_a_fault_strikes_inside_an_unmodified_script(tmp_path: Path) -> None:
    plan = f'{RUN}[[fault]]\nkind = "collective_extra"\nrank = 0\nstep = 4\n'
    found = carried_out(tmp_path, plan, "--no-calm")
    assert found["wrong"] == []
    assert (found["said"], found["ranks"]) == ("collective_mismatch", [0])


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        f'{RUN.replace("16", "4000")}[[fault]]\nkind = "slow"\nrank = 1\nstep = 2\n'
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
    assert run.wait(60) == 130
    assert marked(mark) == {}


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
