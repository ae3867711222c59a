"""`harness restart` on a real run: its workers end and start again, the run goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.test_launcher import Launched, all_gone

ROOT = Path(__file__).resolve().parents[2]
WORKER = """\
echo $$ > "$PIDS/$RANK.$TORCHELASTIC_RESTART_COUNT"
if [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]; then exit 0; fi
exec sleep 1000
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(tmp_path, WORKER, "--nproc-per-node", "2", "--run-name", "again")
    yield launched
    launched.close()


def harness(run: Launched, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments, "--runs-dir", str(run.runs)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.slow
def test_workers_start_again_and_the_run_goes_on(run: Launched) -> None:
    run.until_working("0.0", "1.0")
    everybody = run.everybody()
    asked = harness(run, "restart", "again", "--dry-run")
    assert asked.stdout.startswith("would be done: attempt 0 is stopped; ")
    tried = json.loads(harness(run, "restart", "again", "--dry-run", "--json").stdout)
    assert tried == {"schema": 1, "done": False, "says": asked.stdout[15:].rstrip("\n")}
    done = harness(run, "restart", "again", "--why", "new data")
    assert done.returncode == 0, done.stderr
    code, lines = run.end()
    assert code == 0
    assert "harness: attempt 0 is stopped; the run is started again: new data" in lines
    assert (run.pids / "0.1").exists()
    all_gone(everybody)
    told = harness(run, "replay", "again")
    assert told.returncode == 0
    assert "attempt 1: 2 ranks, is started again: new data" in told.stdout
    over = harness(run, "restart", "again")
    assert over.returncode == 2
    assert "help: start a new one: harness run [OPTIONS] " in over.stderr
