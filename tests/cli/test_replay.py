"""`harness replay`: what is told, and what happens when today's rules say otherwise."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from harness import codec, journal
from harness import events as e
from harness.cli import output
from harness.cli.group import call
from tests.replay.world import World

ROOT = Path(__file__).resolve().parents[2]
Shell = Callable[..., tuple[int, str, str]]
SCHEMA = json.loads(
    resources.files("harness").joinpath("schemas", "replay.schema.json").read_text()
)


def crashed() -> World:
    world = World(nproc=4).start()
    for step in range(1, 4):
        world.step(step)
    world.raises(3, "ValueError", "bad\nnews")
    world.cries(0, 1, 2)
    world.judged()
    return world


def write(folder: Path, records: list[e.Record]) -> None:
    folder.mkdir(parents=True)
    writer = journal.JournalWriter(folder / journal.FILE_NAME, run=folder.name, version="0")
    for record in records:
        writer.append_line(codec.encode(record))
    writer.close()


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs" / "same", crashed().records)
    other = [
        replace(
            record,
            event=replace(
                record.event,
                incident=replace(
                    record.event.incident,
                    verdict=replace(record.event.incident.verdict, first_failing=(1,)),
                ),
            ),
        )
        if isinstance(record.event, e.IncidentOpened)
        else record
        for record in crashed().records
    ]
    write(tmp_path / "runs" / "other", other)

    def shell(*arguments: str) -> tuple[int, str, str]:
        code = call(["replay", *arguments])
        out, err = capsys.readouterr()
        return int(code), out, err

    return shell


def test_the_run_is_told_and_judged_alike(shell: Shell) -> None:
    code, out, err = shell("same")
    lines = [line.split(" s  ", 1)[-1] for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0].startswith("run brave-otter-12: ")
    assert "rank 3 raises ValueError: bad news" in lines
    assert any(line.startswith("incident 1: exception of rank 3: ") for line in lines)
    assert lines[-1] == "judged again: 1 verdict, alike"
    assert shell("same", "--quiet")[1] == "judged again: 1 verdict, alike\n"


def test_another_verdict_than_then_is_said(shell: Shell) -> None:
    code, out, _ = shell("other", "-q")
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == "judged again: otherwise than then"
    assert lines[1].startswith("  then  exception of rank 1, restart: ")
    assert lines[2].startswith("  now   exception of rank 3, restart: ")


@pytest.mark.parametrize(("name", "alike"), [("same", True), ("other", False)])
def test_json_keeps_its_schema(shell: Shell, name: str, alike: bool) -> None:
    code, out, _ = shell(name, "--json")
    told = json.loads(out)
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert (code, told["alike"]) == (0 if alike else 1, alike)
    assert told["moments"][0]["what"] == "run"


def test_it_can_be_told_at_the_pace_at_which_it_happened(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("harness.cli.replay.time.sleep", slept.append)
    monkeypatch.setattr("harness.cli.replay.time.monotonic", lambda: 0.0)
    shell("same", "--speed", "2")
    told = json.loads(shell("same", "--json")[1])
    assert slept == [moment["seconds"] / 2 for moment in told["moments"]]


def test_long_work_is_counted_where_somebody_sits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_LONG_SECONDS", -1.0)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert list(output.counted(range(600), "reading")) == list(range(600))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(output.counted(range(600), "reading")) == list(range(600))
    err = capsys.readouterr().err
    assert err.startswith("\rreading: 256")
    assert err.endswith("\r")


def test_ctrl_c_ends_it_quietly(shell: Shell, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "replay", "same", "--speed", "0.001"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (130, "")
