"""Whatever happens to its bytes, a damaged checkpoint is refused, and the next older one taken."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import nn

import harness
from harness import checkpointdir
from harness.checkpoints import File, decode
from harness.errors import UsageError

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Launch

SHARDS = ("__0_0.distcp", "__1_0.distcp")


def flip_a_bit(file: Path, place: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[place.randrange(len(content))] ^= 1 << place.randrange(8)
    file.write_bytes(content)


def refused(root: Path, step: int) -> str:
    found = checkpointdir.look(root, step)
    return found.reason or checkpointdir.verify(found)


@pytest.fixture
def root(two_steps: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_steps, tmp_path / "ck"))


def test_every_flipped_bit_is_refused(root: Path) -> None:
    assert refused(root, 1) == refused(root, 2) == ""
    place = random.Random(1)
    step = root / "step-000002"
    for file in sorted(step.iterdir()):
        kept = file.read_bytes()
        for _ in range(60):
            flip_a_bit(file, place)
            assert refused(root, 2) != ""
            file.write_bytes(kept)
    assert refused(root, 2) == ""


def test_every_truncation_is_refused(root: Path) -> None:
    place = random.Random(2)
    for file in sorted((root / "step-000002").iterdir()):
        kept = file.read_bytes()
        for size in [0, len(kept) - 1, *(place.randrange(len(kept)) for _ in range(20))]:
            file.write_bytes(kept[:size])
            assert refused(root, 2) != ""
        file.write_bytes(kept)
    assert refused(root, 2) == ""


def swap(step: Path, _before: Path) -> None:
    first, second = (step / name for name in SHARDS)
    first.rename(step / "aside")
    second.rename(first)
    (step / "aside").rename(second)


def stale(step: Path, before: Path) -> None:
    shutil.copy(before / SHARDS[1], step / SHARDS[1])


def missing(step: Path, _before: Path) -> None:
    (step / SHARDS[0]).unlink()


def no_manifest(step: Path, _before: Path) -> None:
    (step / "manifest.json").unlink()


def other_manifest(step: Path, before: Path) -> None:
    shutil.copy(before / "manifest.json", step / "manifest.json")


def empty(step: Path, _before: Path) -> None:
    for file in step.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (swap, "__0_0.distcp "),
        (stale, "__1_0.distcp is not what was written (checksum)"),
        (missing, "__0_0.distcp is missing"),
        (no_manifest, "no manifest, the save was interrupted"),
        (other_manifest, "the manifest is of step 1"),
        (empty, "no manifest, the save was interrupted"),
    ],
)
def test_loading_falls_back_aloud(
    root: Path,
    damage: Callable[[Path, Path], None],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(root / "step-000002", root / "step-000001")
    assert refused(root, 2).startswith(reason)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.LayerNorm(12), nn.Dropout(0.2), nn.Linear(12, 5), nn.Linear(5, 1)
    )
    ck = harness.Checkpointer(root)
    assert ck.load(model=model) == 1
    assert ck.values == {"position": 8}
    said = capsys.readouterr().err
    assert f"harness: checkpoint {root / 'step-000002'} passed over: {reason}" in said


def test_all_ranks_fall_back_to_the_same(launch: Launch, root: Path) -> None:
    flip_a_bit(root / "step-000002" / SHARDS[1], random.Random(3))
    done = launch(2, "train", root, layout="fsdp", until=1, saves=[])
    assert done.codes == [0, 0], done.err
    assert [result["start"] for result in done.results] == [1, 1]
    assert "passed over: __1_0.distcp is not what was written (checksum)" in done.err[0]
    assert done.err[1] == ""


def test_a_consistent_lie_is_found_in_the_tensors(root: Path) -> None:
    """Files and manifest agree, but the tensors are not those whose digests were taken."""
    step = root / "step-000002"
    manifest = decode((step / "manifest.json").read_text())
    shutil.copy(root / "step-000001" / SHARDS[0], step / SHARDS[0])
    files = [
        File(
            name=file.name,
            bytes=(step / file.name).stat().st_size,
            sha256=checkpointdir.checksum(step / file.name),
        )
        for file in manifest.files
    ]
    lie = replace(manifest, files=tuple(files))
    checkpointdir.write_manifest(step, lie)
    assert refused(root, 2) == ""
    with pytest.raises(ValueError, match=r"is not what was saved \(digest\)"):
        harness.Checkpointer(root).tensors(2)


def test_nothing_good_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("step-000001", "step-000002"):
        os.truncate(root / name / SHARDS[0], 7)
    assert harness.Checkpointer(root).load(model=nn.Linear(1, 1)) == 0
    assert f"no checkpoint in {root} is good; training starts at its beginning" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"model": nn.Linear(6, 12)}, "it has no model.weight"),
        (
            {"model": nn.Sequential(nn.Linear(7, 12))},
            r"model.0.weight was saved as float32 \(12, 6\), now it is float32 \(12, 7\)",
        ),
        (
            {"model": nn.Sequential(nn.Linear(6, 12))},
            "it has model.1.bias and 5 more, which model does not have now",
        ),
        ({"net": nn.Sequential(nn.Linear(6, 12))}, "it has no net, it has loader, model, optim"),
    ],
)
def test_what_does_not_fit_is_one_line(root: Path, given: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=f"step-000002 does not fit: {reason}"):
        harness.Checkpointer(root).load(**given)
