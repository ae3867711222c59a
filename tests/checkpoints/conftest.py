"""One zygote a session, from which every test of checkpoints starts its ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What one launch left behind, by rank; `results` is None where a rank did not return."""

    codes: list[int]
    results: list[Any]
    err: list[str]


Launch = Callable[..., Launched]


@pytest.fixture(scope="session")
def zygote() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.checkpoints.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": True}
    yield process
    assert process.stdin is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture(scope="session")
def launch(zygote: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run a program of programs.py on so many ranks."""

    def start(ranks: int, program: str, root: Path, **arguments: Any) -> Launched:
        out = tmp_path_factory.mktemp("ranks")
        arguments["root"] = str(root)
        request = {"program": program, "ranks": ranks, "out": str(out), "arguments": arguments}
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        codes = json.loads(zygote.stdout.readline())["codes"]
        files = [out / f"{rank}.json" for rank in range(ranks)]
        results = [json.loads(f.read_text()) if f.exists() else None for f in files]
        err = [(out / f"{rank}.err").read_text() for rank in range(ranks)]
        return Launched(codes=codes, results=results, err=err)

    return start


@pytest.fixture(scope="session")
def two_steps(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of steps 1 and 2, saved by two ranks that shard."""
    root = tmp_path_factory.mktemp("two") / "ck"
    done = launch(2, "train", root, layout="fsdp", until=2, saves=[1, 2])
    assert done.codes == [0, 0], done.err
    return root
