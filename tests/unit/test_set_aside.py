"""Taking checkpoint files out of the way under the names that they have by then."""

from pathlib import Path

import pytest

from harness.agent.torn import by_its_name_now, carry_out
from harness.checkpointnames import ASIDE_SUFFIX, finished
from harness.orders import SetAside


@pytest.mark.parametrize(
    ("written", "now"),
    [
        ("step_15.pt.tmp", "step_15.pt"),
        (".step_15.pt.a8f2", "step_15.pt"),
        ("tmp_step_15.pt", "step_15.pt"),
        ("tmp-step_20/model.pt", "step_20/model.pt"),
        ("step_15.pt", "step_15.pt"),
        ("step_1.pt.tmp", "step_1.pt.tmp"),
        ("gone/step_1.pt", "gone/step_1.pt"),
    ],
)
def test_a_file_is_found_by_the_name_it_has_now(tmp_path: Path, written: str, now: str) -> None:
    (tmp_path / "step_20").mkdir()
    for name in ("step_5.pt", "step_15.pt", "step_1", "step_20/model.pt"):
        (tmp_path / name).write_bytes(b"x")
    assert by_its_name_now(str(tmp_path / written)) == str(tmp_path / now)


def test_what_was_renamed_since_it_was_written_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "step_5.pt").write_bytes(b"old")
    (tmp_path / "step_10.pt").write_bytes(b"bad")
    order = SetAside(attempt=0, paths=(str(tmp_path / "step_10.pt.tmp"),), suffix=ASIDE_SUFFIX)
    done = carry_out(order, 0, lambda text: None)
    assert (done.moved, done.failed) == ((str(tmp_path / "step_10.pt.set-aside"),), ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10.pt.set-aside", "step_5.pt"]
    assert finished("step_10.pt.tmp") == "step_10.pt"
