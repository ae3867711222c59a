"""A real run is asked for a checkpoint: every rank saves at one step, and training goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.test_launcher import Launched

ROOT = Path(__file__).resolve().parents[2]
BY_CHECKPOINTER = """\
import os, time
import torch
import torch.distributed as dist
import harness
dist.init_process_group("gloo")
rank = os.environ["RANK"]
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
ck = harness.Checkpointer(os.environ["PIDS"] + "/ck", every=1_000_000)
go_on = os.path.join(os.environ["PIDS"], "end")
step = 0
while not os.path.exists(go_on):
    step += 1
    time.sleep(0.001 * (1 + int(rank)))
    harness.progress(step)
    if step == 5:
        open(os.path.join(os.environ["PIDS"], rank), "w").write("5")
    saved = ck.maybe_save(step, model=model)
    if saved is not None:
        print("saved at", step, flush=True)
ck.wait()
"""
BY_NOTHING = """\
import os, time
import harness
step = 0
while True:
    step += 1
    time.sleep(0.001)
    harness.progress(step)
    if step == 5:
        open(os.path.join(os.environ["PIDS"], os.environ["RANK"]), "w").write("5")
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(script: str, *options: str, zygote: bool = False) -> Launched:
        started.append(Launched(tmp_path, script, *options, python=True, zygote=zygote))
        return started[-1]

    yield start
    for run in started:
        run.close()


def ckpt(*words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "ckpt", *words, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_all_ranks_save_at_one_step_and_go_on(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:
    run = launch(BY_CHECKPOINTER, "--nproc-per-node", "2", zygote=True)
    run.until_working("0", "1")
    steps = []
    for _ in range(2):
        code, done = ckpt("save", "--runs-dir", str(run.runs))
        assert code == 0, done
        steps.append(done["step"])
        _, there = ckpt("ls", os.path.dirname(done["path"]))
        newest = there["checkpoints"][0]
        assert (newest["step"], newest["reason"], newest["world_size"]) == (done["step"], None, 2)
    assert steps[0] < steps[1]
    Path(os.path.dirname(done["path"]), "..", "end").touch()
    code, lines = run.end()
    assert code == 0, lines
    logs = sorted((run.runs / "latest" / "logs" / "attempt0").iterdir())
    told = [log.read_text().splitlines() for log in logs]
    assert told == [[f"saved at {step}" for step in steps]] * 2
    assert [event["accepted"] for event in run.events("CommandTaken")] == [True, True]


@pytest.mark.slow
def test_a_script_that_cannot_save_is_said_to_be_one(launch: Callable[..., Launched]) -> None:
    run = launch(BY_NOTHING)
    run.until_working("0")
    code, answer = ckpt("save", "--runs-dir", str(run.runs))
    assert code == 2
    assert answer["error"]["message"].startswith("nothing in the script can save now")
