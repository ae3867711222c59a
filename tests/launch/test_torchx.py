"""The component for TorchX under its own scheduler for one machine: real processes, two nodes."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import group
from harness.portholder import free_port

ROOT = Path(__file__).parents[2]
TRAIN = """\
import os, sys
rank = os.environ["RANK"]
open(rank, "w").write(" ".join([os.environ["WORLD_SIZE"], *sys.argv[1:]]))
if rank == "1" and "break" in sys.argv:
    raise ValueError("no")
"""


def place(capsys: pytest.CaptureFixture[str]) -> str:
    assert group.call(["launch", "torchx"]) == 0
    return capsys.readouterr().out.strip()


def test_where_the_component_lies(capsys: pytest.CaptureFixture[str]) -> None:
    path, _, name = place(capsys).rpartition(":")
    assert Path(path).is_file()
    assert name == "run"


@pytest.fixture
def torchx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A runner of TorchX in a folder with the script, where `harness` is a command."""
    runner = pytest.importorskip("torchx.runner", reason="TorchX is not installed")
    command = tmp_path / "bin" / "harness"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m harness "$@"\n')
    command.chmod(0o700)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return runner.get_runner()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TorchX's own
@pytest.mark.parametrize(
    ("word", "state", "restarts"), [("a $b", "SUCCEEDED", "1"), ("break", "FAILED", "0")]
)
def test_torchx_places_two_nodes(
    torchx: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    word: str,
    state: str,
    restarts: str,
) -> None:
    arguments = ["-j", "2x1", "--rdzv_port", str(free_port()), "--script", "train.py"]
    arguments += ["--options", f"--runs-dir runs --max-restarts {restarts}", "--", "--lr", word]
    with torchx:
        app = torchx.run_component(place(capsys), arguments, scheduler="local_cwd")
        found = torchx.wait(app, wait_interval=0.2)
    assert found.state.name == state
    assert [(tmp_path / rank).read_text() for rank in "01"] == [f"2 --lr {word}"] * 2
    assert (tmp_path / "runs" / "latest" / "journal.jsonl").exists()
