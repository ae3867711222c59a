"""Taking checkpoint files out of the way under the names that they have by then."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch

from harness import checkpointdir
from harness.agent.torn import among, by_its_name_now, carry_out, hold, note
from harness.checkpointnames import ASIDE_SUFFIX, finished, is_models, may_be_ranks
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


@pytest.mark.parametrize(
    ("path", "models"),
    [
        ("/d/anything.pt", True),
        ("/d/data3.safetensors", True),
        ("/d/pytorch_model.bin", True),
        ("/d/step_20.pkl", True),
        ("/d/optim.npz", True),
        ("/d/ckpt/0.tar", True),
        ("/d/step_20/rank0.pkl", True),
        ("/d/train_state.pkl", True),
        ("/d/data2.bin", False),
        ("/d/shard-000123.tar", False),
        ("/d/train_00000-of-00016.npz", False),
        ("/d/samples_epoch3.pkl", False),
        ("/model/data2.bin", False),
        ("/d/notes.txt", False),
    ],
)
def test_whose_a_file_is_by_its_name(path: str, models: bool) -> None:
    assert is_models(path) is models


def test_a_number_that_may_be_a_ranks_is_no_step() -> None:
    assert may_be_ranks("data2.bin", range(3))
    assert may_be_ranks("state2.pt", (2,))
    for name in ("state2.pt", "ckpt_1.pt", "epoch_1.pt", "model_1000.pt", "model.pt"):
        assert not may_be_ranks(name, (1,)), name


def test_only_what_is_surely_a_checkpoint_is_torn(tmp_path: Path) -> None:
    """Data that was cut short is the user's to repair, not ours to rename."""
    cut = io.BytesIO()
    torch.save(torch.ones(1000), cut)
    contents = {
        "data2.bin": b"",
        "saved2.bin": b"",
        "step_5.bin": b"",
        "model.pt": b"",
        "copied.bin": cut.getvalue()[:2000],
        "cache.pkl": pickle.dumps(list(range(1000)))[:500],
        "arrays.npz": b"PK\x03\x04" + bytes(100),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    written = {str(tmp_path / name): name == "saved2.bin" for name in contents}
    torn = {os.path.basename(path) for path in among(written)}
    assert torn == {"saved2.bin", "step_5.bin", "model.pt", "copied.bin"}


def test_a_file_that_torch_save_was_given_open_is_a_checkpoint() -> None:
    written: dict[str, bool] = {}
    for path, saved in (("a.bin", False), ("a.bin", True), ("b.bin", False), ("a.bin", False)):
        note(written, path, saved=saved)
    assert written == {"b.bin": False, "a.bin": True}
    for number in range(4):
        note(written, f"{number}.bin", saved=False)
    assert list(written) == ["0.bin", "1.bin", "2.bin", "3.bin"]


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
