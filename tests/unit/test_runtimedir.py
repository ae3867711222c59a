"""Sockets fit into it wherever it is; what a vanished node has left is removed, nothing else."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness import runtimedir
from harness.doctor import storage
from harness.errors import PlacementError

HOLD = """
import sys
from harness import runtimedir
with runtimedir.made() as folder:
    (folder / runtimedir.JOB).touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_only_what_nobody_holds_any_more_is_removed() -> None:
    with tempfile.TemporaryDirectory() as short:
        _only_what_nobody_holds_is_removed(Path(short))


def _only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    stranger = tmp_path / "harness-of_other"
    stranger.mkdir()
    named = tmp_path / "harness-experiments"
    named.mkdir()
    (named / runtimedir.JOB).touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert runtimedir.remove_abandoned(tmp_path) == []
        agent = runtimedir.hold(folder)
        holder.kill()
        holder.wait()
        assert runtimedir.remove_abandoned(tmp_path) == []
        os.close(agent)
        assert runtimedir.remove_abandoned(tmp_path) == [folder]
    assert sorted(tmp_path.iterdir()) == [named, stranger]


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory in which no socket can be bound."""
    folder = tmp_path / ("of_a_job_" * 12)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_sockets_fit_whatever_the_temporary_directory(deep: Path) -> None:
    with runtimedir.made() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "a999r99999.sock"))
        assert not folder.is_relative_to(deep)
    assert not folder.exists()
    check = storage.temporary()
    assert check.level == "ok"
    assert f"the path {deep} is too long" in check.says


def test_no_place_for_sockets_is_said(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PlacementError, match="too long a path for sockets"), runtimedir.made():
        pass
    assert storage.temporary().level == "fail"
