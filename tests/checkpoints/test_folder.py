"""Retention, certification, and `harness ckpt`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from torch import nn

import harness
from harness import checkpointdir
from harness.checkpoints import Manifest, certified, decode, encode, expendable
from harness.cli import group

SCHEMA = Path(harness.__file__).parent / "schemas" / "checkpoints.schema.json"


def manifests(*steps: int, certified_steps: tuple[int, ...] = ()) -> list[Manifest]:
    found = [Manifest(step=s, world_size=1, saved_ns=0, torch="2") for s in steps]
    return [certified(m, "replicas") if m.step in certified_steps else m for m in found]


def test_what_may_go() -> None:
    assert expendable(manifests(1, 2, 3), keep=3) == []
    assert expendable(manifests(3, 1, 2), keep=1) == [1, 2]
    assert expendable(manifests(10, 15, 20, 25), keep=1, keep_every=10) == [15]
    assert expendable(manifests(1, 2, 3, 4, certified_steps=(1, 2)), keep=1) == [3]
    assert expendable(manifests(1, 2, 3, 4, certified_steps=(1, 2, 3)), keep=1) == [1]
    assert expendable(manifests(1, certified_steps=(1,)), keep=1) == []
    assert expendable([], keep=1) == []
    assert expendable(manifests(1, 2, 3, 4), keep=1, held=[2]) == [1, 3]
    assert expendable(manifests(1, 2, 3, 4), keep=1, awaited=True) == [2, 3]
    assert expendable(manifests(1, 2, 3, 4, certified_steps=(2,)), keep=1, awaited=True) == [1]
    assert expendable(manifests(1, 2, 3, certified_steps=(3,)), keep=1, awaited=True) == [1, 2]


def test_a_manifest_comes_back_and_every_edit_is_seen() -> None:
    (manifest,) = manifests(7, certified_steps=(7,))
    text = encode(manifest)
    assert decode(text) == manifest
    with pytest.raises(ValueError, match=r"the manifest was altered \(checksum\)"):
        decode(text.replace('"step": 7', '"step": 8'))
    with pytest.raises(ValueError, match="schema 2, this version reads 1"):
        decode(text.replace('"schema": 1', '"schema": 2'))
    for torn in ("", "{", "[]", "{}", '{"schema": 1}', text[:200]):
        with pytest.raises(ValueError, match="the manifest is damaged"):
            decode(torn)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 1 to 5, saved by one rank that keeps three and every second."""
    ck = harness.Checkpointer(tmp_path / "ck", keep=2, keep_every=2, every=1, sync=True)
    model = nn.Linear(2, 2)
    for step in range(1, 6):
        assert ck.maybe_save(step, model=model, note=f"n{step}") is not None
    return tmp_path / "ck"


def test_retention_while_training(root: Path) -> None:
    assert [found.step for found in harness.Checkpointer(root).present()] == [5, 4, 2]
    ck = harness.Checkpointer(root, keep=1, sync=True, every=10)
    assert ck.maybe_save(7, model=nn.Linear(2, 2)) is None
    checkpointdir.certify(root / "step-000002", "replicas")
    checkpointdir.certify(root / "step-000004", "replicas")
    assert ck.load() == 5
    ck.save(10, model=nn.Linear(2, 2))
    assert [found.step for found in ck.present()] == [10, 4, 2]


def test_saving_a_step_again_replaces_it(root: Path) -> None:
    ck = harness.Checkpointer(root, sync=True)
    model = nn.Linear(2, 2)
    assert ck.save(5, model=model).outcome == "saved"
    assert bool((ck.tensors(5)["model.weight"] == model.weight).all())
    # As if it had died between the two renames of that.
    (root / "step-000005").rename(root / "step-000005.old")
    assert harness.Checkpointer(root).load(model=model) == 5
    assert not (root / "step-000005.old").exists()


def test_a_reader_leaves_a_save_under_way_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = root / "step-000009.tmp-12ab"
    other.mkdir()
    ck = harness.Checkpointer(root, sync=True)
    model = nn.Linear(2, 2)
    assert ck.load(model=model) == 5
    assert f"{other} passed over: the save was interrupted or is under way" in (
        capsys.readouterr().err
    )
    assert other.exists()
    ck.save(6, model=model)
    assert not other.exists()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = group.call(["ckpt", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(root)
    (root / "step-000009.tmp-12ab").mkdir()
    code, out, _ = call(capsys, "ls", folder)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("step        5  20")
    assert lines[0].endswith("KiB, 1 rank")
    assert lines[3] == "step-000009.tmp-12ab  being written, or the save was interrupted"
    code, out, _ = call(capsys, "verify", folder)
    assert (code, out.count("good, saved")) == (0, 3)
    os.truncate(root / "step-000005" / ".metadata", 3)
    content = bytearray((root / "step-000004" / "__0_0.distcp").read_bytes())
    content[100] ^= 1
    (root / "step-000004" / "__0_0.distcp").write_bytes(content)
    code, out, _ = call(capsys, "verify", folder)
    assert code == 1
    assert "step        5  refused: .metadata has 3 bytes, not" in out
    assert "step        4  refused: __0_0.distcp is not what was written (checksum)" in out
    assert call(capsys, "verify", folder, "--step", "2")[0] == 0
    # Step 2 is the only good one: it stays, whatever is asked.
    assert call(capsys, "prune", folder, "--keep", "1") == (0, "nothing to delete\n", "")
    assert (root / "step-000002" / "manifest.json").exists()


def test_the_command_deletes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(root)
    words = (f"{root / 'step-000002'}\n", f"{root / 'step-000004'}\n")
    asked = ("prune", folder, "--keep", "1")
    would = "".join(f"would delete {word}" for word in words)
    assert call(capsys, *asked, "--dry-run") == (0, would, "")
    assert call(capsys, *asked) == (0, "".join(f"deleted {word}" for word in words), "")
    assert [found.step for found in checkpointdir.look_at_all(root)] == [5]


def test_the_json_follows_its_schema(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    shutil.rmtree(root / "step-000002")
    (root / "step-000002").mkdir()
    for arguments in (["ls"], ["verify"], ["prune", "--keep", "1", "--dry-run"]):
        _, out, _ = call(capsys, *arguments, str(root), "--json")
        written = json.loads(out)
        assert [error.message for error in validator.iter_errors(written)] == []
    states = [
        entry["state"]
        for entry in json.loads(call(capsys, "ls", str(root), "--json")[1])["checkpoints"]
    ]
    assert states == ["saved", "saved", "refused"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["ls", "/nonexistent"], "error[H305]: /nonexistent: no such folder\n"),
        (["ls"], "error[H001]: missing argument 'DIR'\n"),
        (["verify", ".", "--step", "3"], "error[H305]: .: no checkpoint of step 3\n"),
        (["prune", "."], "error[H001]: missing option '--keep'\n"),
        (
            ["prune", ".", "--keep", "0"],
            "error[H001]: invalid value for '--keep': '0' is not a",
        ),
        ([], "error[H001]: missing command: save, ls, verify or prune\n"),
    ],
)
def test_wrong_lines_are_answered_in_one(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(error)


def test_the_command_needs_no_torch(root: Path) -> None:
    code = (
        "import sys\nfrom harness.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules"
    )
    for arguments in (["ls"], ["verify"], ["prune", "--keep", "1"]):
        command = [sys.executable, "-c", code, "ckpt", *arguments, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
