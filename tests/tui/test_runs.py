"""Finding a run and reading its journal, the damaged one too."""

import json
import os
import socket
import subprocess
import sys

import pytest

from harness import runs
from harness.errors import UsageError


@pytest.fixture
def root(tmp_path, scenes):
    folder = tmp_path / "runs"
    folder.mkdir()
    for at, name in enumerate(("calm-fox-11", "swift-otter-12")):
        path = scenes.finished().write(folder, name=name)
        os.utime(path, (at, at))
    return folder


def test_run_is_found_by_every_way(root, monkeypatch):
    newest = root / "swift-otter-12"
    assert runs.find(None, root).path == newest
    assert runs.find("latest", root).path == newest
    assert runs.find("calm-fox-11", root).path == root / "calm-fox-11"
    assert runs.find(str(newest), root / "elsewhere").path == newest
    assert runs.find(str(newest / "journal.jsonl"), root).path == newest
    monkeypatch.chdir(root)
    assert runs.find("./calm-fox-11", root / "elsewhere").name == "calm-fox-11"
    (root / "latest").unlink()
    assert runs.find(None, root).path == newest
    assert runs.find("10.0.0.7:4711", root) == runs.Endpoint(address="10.0.0.7:4711")
    assert runs.find("[::1]:4711", root) == runs.Endpoint(address="[::1]:4711")


@pytest.mark.parametrize(
    ("argument", "message", "help"),
    [
        ("swift-oter-12", "no run 'swift-oter-12'", "did you mean swift-otter-12?"),
        ("zzz", "no run 'zzz'", "swift-otter-12, calm-fox-11"),
        ("host:70000", "a port is a number", None),
    ],
)
def test_what_is_not_there_gets_one_line(root, argument, message, help):
    with pytest.raises(UsageError) as caught:
        runs.find(argument, root)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert help is None or help in caught.value.help


def test_no_runs_at_all(tmp_path):
    for argument in (None, "x"):
        with pytest.raises(runs.RunNotFound) as caught:
            runs.find(argument, tmp_path / "runs")
        assert "harness run" in caught.value.help
    with pytest.raises(runs.RunNotFound, match="not a run directory"):
        runs.find(str(tmp_path), tmp_path)


def test_runs_dir_comes_from_option_environment_or_here(monkeypatch):
    monkeypatch.delenv("HARNESS_RUNS_DIR", raising=False)
    assert str(runs.runs_dir(None)) == "runs"
    monkeypatch.setenv("HARNESS_RUNS_DIR", "/data/runs")
    assert str(runs.runs_dir(None)) == "/data/runs"
    assert str(runs.runs_dir("here")) == "here"


def test_torn_last_line_is_left_out(root):
    found = runs.find(None, root)
    whole = runs.read(found)
    text = found.journal.read_bytes()
    found.journal.write_bytes(text[:-40])
    torn = runs.read(found)
    assert whole.notes == ()
    assert whole.state.ended is not None
    assert torn.state.ended is None
    assert torn.state.incidents == whole.state.incidents
    assert len(torn.notes) == 1


def test_damaged_line_is_named_and_the_rest_is_read(root):
    found = runs.find(None, root)
    lines = found.journal.read_bytes().split(b"\n")
    lines[9] = b'{"stamp": garbage'
    found.journal.write_bytes(b"\n".join(lines))
    reading = runs.read(found)
    assert len(reading.notes) == 1
    assert f"{found.journal}:10" in reading.notes[0]
    assert reading.state.ended is not None


def test_run_that_has_written_nothing_is_empty(tmp_path):
    folder = tmp_path / "runs" / "new"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    found = runs.find("new", tmp_path / "runs")
    assert runs.read(found).state.run is None
    found.journal.write_bytes(b'{"schema":1')
    assert runs.read(found).state.run is None


def test_controller_is_alive_only_when_it_is_one(tmp_path, scenes):
    folder = scenes.running().write(tmp_path)
    found = runs.RunFolder(path=folder)
    state = runs.read(found).state
    assert runs.controller_facts(found, state) is None
    facts = {"address": "127.0.0.1:4711", "pid": os.getpid()}
    (folder / "controller.json").write_text(json.dumps(facts))
    assert runs.controller_facts(found, state).alive is None  # it ran on host-0
    state.nodes[0].host = socket.gethostname()
    assert runs.controller_facts(found, state).alive is False  # this process is none
    with subprocess.Popen(
        [sys.executable, "-c", "input(chr(10))", "harness.controller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()  # until it runs, the kernel may not show its arguments
        facts["pid"] = process.pid
        (folder / "controller.json").write_text(json.dumps(facts))
        assert runs.controller_facts(found, state).alive is True
        process.stdin.write(b"\n")
        process.stdin.close()
    (folder / "controller.json").write_text("{")
    assert runs.controller_facts(found, state) is None
