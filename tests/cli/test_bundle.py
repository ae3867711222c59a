"""`harness bundle` and `harness trace` as typed, and bundles that are not kind to us."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness import bundles, codec, journal, runs
from harness.cli.group import call
from tests.replay.world import World

Shell = Callable[..., tuple[int, str, str]]


def schema(name: str) -> Any:
    return json.loads(
        resources.files("harness").joinpath("schemas", f"{name}.schema.json").read_text()
    )


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """The command line in a folder with the run brave-otter-12, which had an incident."""
    monkeypatch.chdir(tmp_path)
    world = World(nproc=4).start()
    for step in range(1, 4):
        world.step(step)
    world.raises(3, "ValueError", "bad --api-key s3cr3t-value at /home/u/x")
    world.cries(0, 1, 2)
    world.judged()
    run = tmp_path / "runs" / "brave-otter-12"
    writer_of = journal.JournalWriter
    run.mkdir(parents=True)
    writer = writer_of(run / journal.FILE_NAME, run="brave-otter-12", version="0")
    for record in world.records:
        writer.append_line(codec.encode(record))
    writer.close()
    (run / "job.json").write_text('{"token": "the-token"}')
    (run / "config.json").write_text('{"settings": {"x": {"value": "y"}}}')
    logs = run / "logs" / "attempt0"
    logs.mkdir(parents=True)
    for rank in range(4):
        (logs / f"rank{rank:05}.log").write_text(
            "x" * (300_000 if rank == 0 else 9) + f"\nrank {rank} TOKEN=abcdef\n"
        )

    def shell(*arguments: str) -> tuple[int, str, str]:
        code = call(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(code), out, err

    return shell


def test_a_bundle_opens_elsewhere_and_says_the_same(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = json.loads(shell("report", "--json")[1])
    code, out, _ = shell("bundle", "--json", "-o", "b.tar.gz")
    told = json.loads(out)
    jsonschema.Draft202012Validator(schema("bundle")).validate(told)
    assert code == 0
    assert told["redacted"]["secret"] >= 2
    (tmp_path / "runs").rename(tmp_path / "gone")
    there = json.loads(shell("report", "b.tar.gz", "--json")[1])
    assert there["incidents"][0]["class"] == here["incidents"][0]["class"]
    assert there["attempts"] == here["attempts"]
    for words in (["status", "b.tar.gz"], ["logs", "b.tar.gz", "-n", "1"], ["report", "b.tar.gz"]):
        code, out, _ = shell(*words)
        assert code in (0, 3, 4)
        assert "s3cr3t" not in out
        assert "abcdef" not in out
    with tarfile.open("b.tar.gz") as archive:
        whole = b"".join(
            file.read() for member in archive if (file := archive.extractfile(member)) is not None
        )
    for secret in (b"s3cr3t-value", b"abcdef", b"the-token"):
        assert secret not in whole


def test_a_bundle_is_a_moment_of_its_run(shell: Shell, tmp_path: Path) -> None:
    """However long ago it was; nothing can be asked of it, and nothing more comes."""
    shell("bundle", "-o", "b.tar.gz")
    (tmp_path / "runs").rename(tmp_path / "gone")
    code, out, err = shell("status", "b.tar.gz")
    assert code == 4
    assert "SILENT" not in out
    assert "EXCEPTION" in out
    assert "the run went on when it was bundled" in err
    for words in (["stop"], ["restart"], ["stacks"]):
        code, _, err = shell(*words, "b.tar.gz")
        assert code == 2
        assert "error[H104]: a bundle is how a run was" in err
    code, _, err = shell("bundle", "b.tar.gz")
    assert code == 2
    assert "b.tar.gz is a bundle already" in err
    assert shell("logs", "b.tar.gz", "-f", "-n", "1")[0] == 0


def test_what_is_in_it_is_said(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("bundle")
    assert (code, out) == (0, "")
    assert "brave-otter-12.bundle.tar.gz: 6 files" in err
    assert "of 1 log only the end is in it" in err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "0 x" not in err
    assert '"whole": false' not in shell("bundle", "--json", "--logs", "all")[1]
    names = [
        each["name"] for each in json.loads(shell("bundle", "--json", "--logs", "none")[1])["files"]
    ]
    assert names == ["journal.jsonl", "config.json"]
    code, _, err = shell("bundle", "-o", "no/such/folder/x")
    assert code == 2
    assert "cannot write no/such/folder/x" in err


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for member, data in members:
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def manifest(**changes: object) -> tuple[tarfile.TarInfo, bytes]:
    told = {"schema": 1, "kind": "harness bundle", "run": "x", **changes}
    return tarfile.TarInfo("bundle.json"), json.dumps(told).encode()


def test_what_leads_out_of_it_is_refused(tmp_path: Path, shell: Shell) -> None:
    link = tarfile.TarInfo("journal.jsonl")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    evil = [
        (tarfile.TarInfo("../../escaped"), b"x"),
        (tarfile.TarInfo(str(tmp_path / "escaped")), b"x"),
        (link, b""),
    ]
    for at, member in enumerate(evil):
        path = archive(tmp_path / f"{at}.tar.gz", manifest(run="../../up"), member)
        code, _, err = shell("report", str(path))
        assert code == 2
        assert "is no plain file below it" in err
    assert not (tmp_path / "escaped").exists()


def test_what_is_no_bundle_is_said(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "text").write_text("x")
    assert "neither a run nor a bundle" in shell("report", "text")[2]
    newer = archive(tmp_path / "newer.tar.gz", manifest(schema=2))
    assert "schema 2" in shell("report", str(newer))[2]
    empty = archive(tmp_path / "empty.tar.gz", manifest())
    assert "has no journal.jsonl" in shell("report", str(empty))[2]
    shell("bundle", "-o", "cut.tar.gz")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(cut.read_bytes()[:-200])
    code, _, err = shell("report", "cut.tar.gz")
    assert code == 2
    assert "is damaged" in err


def test_unpacked_files_go_with_the_process(tmp_path: Path, shell: Shell) -> None:
    shell("bundle", "-o", "b.tar.gz")
    found = runs.find("b.tar.gz", tmp_path)
    assert isinstance(found, runs.RunFolder)
    assert found.name == "brave-otter-12"
    assert (found.path / "config.json").is_file()
    assert bundles.is_bundle(tmp_path / "b.tar.gz")


KILLED = """
import os, signal, sys
from pathlib import Path
from harness import bundles
print(bundles.unpack(Path(sys.argv[1])).parent, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_reader_has_unpacked_goes_with_the_next(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("bundle", "-o", "b.tar.gz")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, "b.tar.gz"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as reader:
        assert reader.stdout is not None
        unpacked = Path(reader.stdout.readline().strip())
        bundles.unpack(Path("b.tar.gz"))
        assert unpacked.is_dir(), "somebody reads it"
        reader.kill()
        reader.wait()
    bundles.unpack(Path("b.tar.gz"))
    assert not unpacked.exists()


def test_a_trace_is_written_and_keeps_its_schema(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("trace")
    assert (code, out) == (0, "")
    assert err.startswith("brave-otter-12.trace.json: ")
    written = json.loads((tmp_path / "brave-otter-12.trace.json").read_text())
    jsonschema.Draft202012Validator(schema("trace")).validate(written)
    assert json.loads(shell("trace", "--json")[1]) == written
    for words, why in (
        (["--attempt", "9"], "it has attempt 0 only"),
        (["--json", "-o", "x"], "exclude each other"),
        (["127.0.0.1:1"], "lie on its own machine"),
        (["-o", "no/such/x"], "cannot write no/such/x"),
        (["--rank", "9"], "these ranks are not of this run"),
        (["--where", "state=hug"], "hung"),
    ):
        code, out, err = shell("trace", *words)
        assert code == 2
        assert why in out + err


def test_the_page_is_written(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("report", "--html", "page.html")
    assert (code, out) == (0, "")
    assert err.startswith("page.html: ")
    text = (tmp_path / "page.html").read_text()
    assert "brave-otter-12" in text
    assert shell("report", "--html", "-")[1] == text + "\n"
    for words, why in (
        (["--html", "x", "--card"], "--html goes with neither"),
        (["--html", "no/such/x"], "cannot write no/such/x"),
    ):
        code, _, err = shell("report", *words)
        assert code == 2
        assert why in err
