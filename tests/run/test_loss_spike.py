"""A loss that goes up and stays there: back to before it once, and no further where it comes again.

The script is the one of the verdict's page.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.run.test_cli_run import harness
from tests.run.test_cli_run import here as here  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts" / "loss_spike.md"


def script(*, always: bool) -> str:
    found = re.search(r"<<'PY'\n(.*?)\nPY\n", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found.group(1).replace("time.sleep(0.03)", "time.sleep(0.01)")
    # Until it is stopped, however long that takes here.
    if always:
        text = text.replace("step == 90 and not first", "step == 90")
        return text.replace("range(first, 160)", "range(first, 9999)")
    return text.replace("range(first, 160)", "range(first, 160 if first else 9999)")


def incidents(here: Path, *, always: bool, ranks: int, exit_code: int) -> list[dict[str, Any]]:
    (here / "train.py").write_text(script(always=always))
    done = harness(here, "run", "--nproc-per-node", str(ranks), "train.py")
    assert done.returncode == exit_code, done.stderr
    report = harness(here, "report", "--json")
    return list(json.loads(report.stdout)["incidents"])


def test_once_it_is_rolled_back_and_training_ends_well(here: Path) -> None:
    (incident,) = incidents(here, always=False, ranks=2, exit_code=0)
    assert (incident["class"], incident["action"]) == ("loss_spike", "rollback")
    assert (incident["first_failing"], incident["innocent"]) == ([], [0, 1])
    assert "in step 91, after 23,296 tokens" in incident["cause"]
    assert incident["reason"]
    assert (here / "step_0100.pt.set-aside").exists()
    assert (here / "step_0160.pt").exists()


def test_at_the_same_place_again_it_stops_the_run(here: Path) -> None:
    first, second = incidents(here, always=True, ranks=1, exit_code=81)
    assert [each["action"] for each in (first, second)] == ["rollback", "stop"]
    assert {each["class"] for each in (first, second)} == {"loss_spike"}
    assert "in step 91, after 23,296 tokens" in second["cause"]
