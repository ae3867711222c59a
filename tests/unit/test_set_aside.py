"""Taking checkpoint files out of the way under the names that they have by then."""

import os
from pathlib import Path

import pytest

from harness import checkpointdir
from harness.agent.torn import by_its_name_now, carry_out, hold
from harness.checkpointnames import ASIDE_SUFFIX, finished
from harness.checkpoints import Manifest, attempt_name
from harness.orders import HoldCheckpoint, SetAside


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


def test_what_is_gone_already_is_no_failure_and_what_is_missed_is_told(tmp_path: Path) -> None:
    (tmp_path / "step_5.pt").write_bytes(b"old")
    order = SetAside(
        attempt=0, paths=(str(tmp_path / "step_15.pt"),), suffix=ASIDE_SUFFIX,
        good=(str(tmp_path / "step_10.pt.tmp"), str(tmp_path / "step_5.pt.tmp")),
    )  # fmt: skip
    said: list[str] = []
    done = carry_out(order, 0, said.append)
    assert (done.moved, done.failed, said) == ((), (), [])
    assert done.gone == (str(tmp_path / "step_10.pt.tmp"),)


def test_a_held_checkpoint_stays_while_its_attempt_lasts(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        path = checkpointdir.folder(tmp_path, step)
        path.mkdir()
        manifest = Manifest(step=step, world_size=1, saved_ns=0, torch="2")
        checkpointdir.write_manifest(path, manifest)
    said: list[str] = []
    hold(HoldCheckpoint(attempt=2, path=str(checkpointdir.folder(tmp_path, 5))), said.append)
    hold(HoldCheckpoint(attempt=2, path=str(tmp_path / "gone")), said.append)
    assert said == [
        f"harness: {tmp_path}/gone cannot be held, so retention may delete it: No such file or"
        " directory"
    ]
    holder = attempt_name(os.getpid(), 2)
    assert checkpointdir.prune(tmp_path, keep=1, holder=holder) == [10]
    assert checkpointdir.prune(tmp_path, keep=1) == []  # by hand: somebody holds it
    assert checkpointdir.prune(tmp_path, keep=1, holder=attempt_name(os.getpid(), 3)) == [5]
