"""Run directories: names, collisions, the latest link."""

from pathlib import Path

import pytest

from harness import rundir
from harness.errors import UsageError


def test_names_are_short_and_speakable(tmp_path: Path) -> None:
    name, path = rundir.create(tmp_path / "runs", "")
    adjective, noun, number = name.split("-")
    assert adjective in rundir.ADJECTIVES.split()
    assert noun in rundir.NOUNS.split()
    assert number.isdigit()
    assert path == tmp_path / "runs" / name
    assert (path / "logs").is_dir()


def test_a_name_is_used_once(tmp_path: Path) -> None:
    rundir.create(tmp_path, "mine")
    with pytest.raises(UsageError, match="run mine already exists"):
        rundir.create(tmp_path, "mine")


@pytest.mark.parametrize("name", ["../x", "a/b", "latest", ".hidden", "x" * 65, "a b"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        rundir.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot make a run directory in .*runs: Not a directory"):
        rundir.create(tmp_path / "file" / "runs", "")


def test_latest_follows_the_newest_and_spares_a_real_folder(tmp_path: Path) -> None:
    for name in ("first", "second"):
        rundir.create(tmp_path, name)
        rundir.link_latest(tmp_path, name)
    assert (tmp_path / "latest").readlink() == Path("second")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    rundir.link_latest(tmp_path, "first")
    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


def test_what_a_run_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    _, run_dir = rundir.create(tmp_path, "t")
    assert [path.stat().st_mode & 0o777 for path in (run_dir, run_dir / "logs")] == [0o700] * 2
