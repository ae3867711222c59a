"""One zygote a session, from which every test of the trainer starts its ranks."""

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
TINY = [
    *("--d-model", "32", "--layers", "4", "--heads", "4", "--ffn", "64", "--seq-len", "32"),
    *("--steps", "5", "--warmup", "2"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What one launch of the trainer left behind, by rank."""

    codes: list[int]
    out: list[str]
    err: list[str]
    steps: list[list[dict[str, Any]] | None]


Launch = Callable[..., Launched]


@pytest.fixture(scope="session")
def zygote() -> Iterator[subprocess.Popen[str]]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
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


@pytest.fixture
def launch(zygote: subprocess.Popen[str], tmp_path: Path) -> Launch:
    """Train on N ranks with a tiny model; flags given later win over the tiny ones."""
    count = 0

    def start(ranks: int, *flags: str, kill: tuple[int, int] | None = None) -> Launched:
        nonlocal count
        count += 1
        out = tmp_path / f"launch{count}"
        out.mkdir()
        argv = [*TINY, *flags]
        request = {"argv": argv, "ranks": ranks, "out": str(out), "kill": kill}
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        codes = json.loads(zygote.stdout.readline())["codes"]

        def texts(suffix: str) -> list[str]:
            return [(out / f"{rank}.{suffix}").read_text() for rank in range(ranks)]

        files = [out / f"{rank}.json" for rank in range(ranks)]
        steps = [json.loads(f.read_text()) if f.exists() else None for f in files]
        return Launched(codes=codes, out=texts("out"), err=texts("err"), steps=steps)

    return start
