"""The campaigns of bench/ in small: nothing is lost however often ranks and controllers die."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def campaign(name: str, *options: str) -> str:
    """What `bench/NAME.py` prints; it must find nothing wrong."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--no-results", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("layout", "kills"), [("zero3", 20), ("pp-tp", 4)])
def test_killed_at_every_step_and_the_same_in_the_end(layout: str, kills: int) -> None:
    said = campaign("resume", "--only", layout, "--kills", str(kills))
    assert f"| {kills} |" in said
    assert said.rstrip().endswith("| identical |")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_step_is_lost_with_the_controller_even_amid_incidents() -> None:
    said = campaign("controller_kills", "--runs", "2", "--kills", "4")
    # A quick run may be over before its last controller is hit.
    assert re.search(r"\| all \| \| [1-8] \| \| \| nothing lost \|$", said.rstrip())
