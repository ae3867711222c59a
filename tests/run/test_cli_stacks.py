"""`harness stacks` and `attach` as typed, and the signals that ask for stacks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HARNESS = [sys.executable, "-m", "harness"]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SCRIPT = """\
import os, sys, time

def odd():
    os.write(1, READY); time.sleep(1000)

def even():
    os.write(1, READY); time.sleep(1000)

READY = b"ready\\n"  # said as one, where both write to one pipe, and on the line they stay on
odd() if os.environ["RANK"] == "1" else even()
"""


def wait_until(check: Callable[[], Any], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def harness(here: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HARNESS, *arguments],
        cwd=here,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def live(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*HARNESS, "run", "--no-zygote", "--nproc-per-node", "3", "train.py"]
    with (tmp_path / "err").open("wb") as err:
        run = subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRON, stdout=subprocess.DEVNULL, stderr=err
        )
    logs = tmp_path / "runs/latest/logs/attempt0"
    wait_until(lambda: [p.read_text() for p in sorted(logs.glob("rank*"))] == ["ready\n"] * 3)
    yield run
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        run.wait(240)


def test_stacks_of_a_live_run_by_command_and_by_signal(
    live: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    sentence = "2 of 3 ranks are at train.py:7 in even; rank 1 is at train.py:4 in odd"
    done = harness(tmp_path, "stacks")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == sentence
    assert lines[2].startswith("rank 1 (pid ")
    done = harness(tmp_path, "stacks", "--rank", "1", "--json")
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["incident"]) == (1, None)
    assert answer["sentence"] == "rank 1 is at train.py:4 in odd"
    for arguments, words in (
        (["--rank", "3"], "error[H103]: refused: there is no rank 3; the ranks are 0-2"),
        (["--rank", "x"], "error[H004]: "),
        (["--locals", "perhaps"], "error[H001]: "),
    ):
        done = harness(tmp_path, "stacks", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(words)
        assert len(done.stderr.splitlines()) <= 2
    err = tmp_path / "err"
    for count, number in enumerate((signal.SIGQUIT, signal.SIGUSR1), start=1):
        live.send_signal(number)
        wait_until(lambda count=count: err.read_text().count(sentence) == count)  # type: ignore[misc]
    assert live.poll() is None
    live.send_signal(signal.SIGINT)
    assert live.wait(240) == 130
    done = harness(tmp_path, "stacks")
    assert (done.returncode, done.stdout) == (2, "")
    assert "had no incident" in done.stderr


def test_attach_to_a_job_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    starter = (
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen([sys.executable, '-S', 'train.py'],"
        " env={**os.environ, 'RANK': str(rank)}) for rank in range(2)]\n"
        "for rank in ranks: rank.wait()\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-S", "-c", starter],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "RANK"},
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        done = harness(tmp_path, "attach", str(job.pid))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == (
            "rank 1 is at train.py:4 in odd; rank 0 is at train.py:7 in even"
        )
        answer = json.loads(harness(tmp_path, "attach", str(job.pid), "--json").stdout)
        assert [group["ranks"] for group in answer["groups"]] == [[0], [1]]
        assert answer["flight"] == []
        assert job.poll() is None
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        job.stdout.close()
    done = harness(tmp_path, "attach", str(job.pid))
    assert (done.returncode, done.stderr) == (2, f"error[H306]: there is no process {job.pid}\n")
    assert harness(tmp_path, "attach").returncode == 2
