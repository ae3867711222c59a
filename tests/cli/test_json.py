"""What reading commands print under --json keeps its schema; so do errors."""

import json
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from referencing import Registry, Resource

from harness import codec, journal
from harness.cli import COMMANDS
from harness.cli.group import call
from tests.replay.scenarios import SCENARIOS

FOLDER = resources.files("harness").joinpath("schemas")
SCHEMAS = {
    path.name.removesuffix(".schema.json"): json.loads(path.read_text())
    for path in FOLDER.iterdir()
    if path.name.endswith(".schema.json")
}
REGISTRY: Registry[Any] = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()
)
OF_A_RUN = (
    ("status", "status"),
    ("report", "report"),
    ("report --card", "incident"),
    ("logs", "logs"),
    ("stacks", "stacks"),
    ("replay", "replay"),
    ("trace", "trace"),
    ("bundle", "bundle"),
)
OTHERS = (
    ("explain", "explain"),
    ("explain exception", "explain"),
    ("chaos list", "faults"),
    ("chaos explain kill", "faults"),
    ("config show --all", "config"),
    ("config validate", "config"),
    ("plan 7B --gpus 64 --pp 2 --tokens-per-s 0.5e6 --critical-batch 1e6", "plan"),
    ("plan 70B --gpus 8", "plan"),
    ("plan --schedule zero-bubble --pp 2", "plan"),
)
ELSEWHERE = {"analyze", "attach", "ckpt", "doctor"}
"""Tested where they are tested."""
ACTING = {"run", "launch", "tui", "restart", "stop", "inject", "chaos", "completion"}

Shell = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """The command line beside a run that is over and had an incident."""
    monkeypatch.chdir(tmp_path)
    world = next(
        each for one in SCENARIOS if (each := one.build()).state.ended and each.state.incidents
    )
    run = tmp_path / "runs" / "brave-otter-12"
    logs = run / "logs" / "attempt0"
    logs.mkdir(parents=True)
    (logs / "rank00000.log").write_text("one\ntwo\n")
    writer = journal.JournalWriter(run / journal.FILE_NAME, run="brave-otter-12", version="0")
    for record in world.records:
        writer.append_line(codec.encode(record))
    writer.close()

    def shell(*words: str) -> tuple[int, list[str]]:
        code = call(list(words))
        return int(code), capsys.readouterr().out.splitlines()

    return shell


def validate(name: str, lines: list[str]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    whole = [json.loads(line) for line in lines] if name == "logs" else [json.loads("".join(lines))]
    for value in whole:
        validator.validate(value)
    assert whole


def test_each_command_prints_what_its_schema_says(shell: Shell) -> None:
    for words, name in (*OF_A_RUN, *OTHERS):
        code, lines = shell(*words.split(), "--json")
        assert code in (0, 1, 3), words
        validate(name, lines)


def test_errors_are_one_object_on_stdout(shell: Shell) -> None:
    for words, _ in OF_A_RUN:
        code, lines = shell(*words.split(), "--no-such-option", "--json")
        assert code == 2
        validate("error", lines)
        code, lines = shell(words.split()[0], "no-such-run", "--json")
        assert code == 2
        validate("error", lines)


def test_commands_that_ask_a_run_answer_as_one_object(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines = shell("restart", "--json")
    assert code == 2
    validate("error", lines)
    code, lines = shell("stop", "--json")
    assert code == 2
    validate("error", lines)
    monkeypatch.setattr("harness.cli.stop.ask", lambda *_: "the run is being stopped")
    code, lines = shell("stop", "--json")
    assert code == 0
    validate("answer", lines)
    assert json.loads(lines[0]) == {
        "schema": 1, "done": True, "says": "the run is being stopped",
    }  # fmt: skip


def test_no_reading_command_is_forgotten() -> None:
    tested = {words.split()[0] for words, _ in (*OF_A_RUN, *OTHERS)}
    assert tested | ELSEWHERE | ACTING == set(COMMANDS)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_command_that_reads_has_json() -> None:
    import importlib

    for name in set(COMMANDS) - ACTING:
        command = importlib.import_module(COMMANDS[name][0]).command
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        for each in inner:
            options = {option for parameter in each.params for option in parameter.opts}
            assert "--json" in options or each.name == "init", (name, each.name)


def test_a_run_that_left_an_empty_journal_has_no_last_sign(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "brave-otter-12"
    (folder / journal.FILE_NAME).write_bytes(b"")
    no_controller = {"address": "127.0.0.1:1", "pid": os.getpid()}
    (folder / "controller.json").write_text(json.dumps(no_controller))
    _, lines = shell("status", "brave-otter-12")
    assert "GONE  no process of it is left; its journal is empty" in lines
