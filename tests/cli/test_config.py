"""`harness config` and `harness completion` as typed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from harness.cli import COMMANDS
from harness.cli.group import call, harness
from harness.settings import SETTINGS

Shell = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(
    resources.files("harness").joinpath("schemas", "config.schema.json").read_text()
)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))

    def shell(*arguments: str) -> tuple[int, str, str]:
        code = call(["config", *arguments])
        out, err = capsys.readouterr()
        return int(code), out, err

    return shell


def told(shell: Shell, *arguments: str) -> Any:
    value = json.loads(shell(*arguments, "--json")[1])
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


def test_the_strongest_counts_and_its_origin_is_told(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("show")[1].startswith("nothing is set: all ")
    (tmp_path / "harness.toml").write_text('max_restarts = 7\nrun-name = "x"\n')
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\nmax_restarts = 8\nspares = 1\n")
    monkeypatch.setenv("HARNESS_STOP_GRACE", "4")
    lines = shell("show", "--origin")[1].splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        f'run_name = "x" # {tmp_path}/harness.toml',
        f"spares = 1 # {tmp_path}/pyproject.toml",
        f"max_restarts = 7 # {tmp_path}/harness.toml",
        "stop_grace = 4 # HARNESS_STOP_GRACE",
    ]
    assert told(shell, "show", "stop-grace")["settings"] == {
        "stop_grace": {"value": 4, "origin": "HARNESS_STOP_GRACE"}
    }
    assert len(told(shell, "show", "--all")["settings"]) == len(SETTINGS)
    code, _, err = shell("show", "max_restart")
    assert (code, err.splitlines()[1]) == (2, "help: did you mean max_restarts?")


def test_all_that_is_wrong_is_said_at_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("validate")[0] == 0
    path = tmp_path / "harness.toml"
    path.write_text('max_restart = 3\nstop_grace = "x"\nspares = -1\nmodule = true\n')
    monkeypatch.setenv("HARNESS_NODE_RANK", "q")
    monkeypatch.setenv("HARNESS_MAX_RESTART", "3")
    code, out, _ = shell("validate")
    assert code == 2
    assert out.splitlines() == [
        f"error[H002]: {path}: unknown key 'max_restart'",
        "help: did you mean max_restarts?",
        f"error[H002]: {path}: stop_grace: 'x' is not a number",
        f"error[H002]: {path}: spares: -1 is less than 0",
        "error[H002]: HARNESS_NODE_RANK: 'q' is not a whole number",
        "warning: HARNESS_MAX_RESTART is not a setting and does nothing;"
        " did you mean HARNESS_MAX_RESTARTS?",
        "4 things wrong",
    ]
    value = told(shell, "validate")
    assert value["files"] == [{"path": str(path), "settings": 1}]
    assert (len(value["problems"]), len(value["warnings"])) == (4, 1)
    assert len(told(shell, "validate", "--strict")["problems"]) == 5
    path.write_text("max_restarts = \n")
    assert shell("validate", "harness.toml")[0] == 2
    assert "no such file" in shell("validate", "other.toml")[2]
    assert "/: is not a file" in shell("validate", "/")[2]
    Path("other.toml").write_bytes(b"max_\xff")
    assert "other.toml: not text in UTF-8 (byte 5)" in shell("validate", "other.toml")[1]


def test_the_file_to_begin_with_is_right_as_it_is_and_with_all_in_it(
    shell: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "harness.toml"
    assert shell("init")[0] == 0
    assert "is there already" in shell("init")[2]
    assert shell("validate")[1].startswith(f"all is right: {path} (0 settings)")
    assert shell("init", "--all", "--force")[0] == 0
    text = path.read_text()
    commented = [line.removeprefix("# ") for line in text.splitlines() if " = " in line]
    settings = [line for line in commented if line.split(" = ")[0] in {s.name for s in SETTINGS}]
    path.write_text("\n".join(settings))
    assert shell("validate")[1].startswith(f"all is right: {path} ({len(SETTINGS)} settings)")


def test_settings_of_a_run_are_those_it_was_started_with(shell: Shell, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "old"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text("")
    (run / "config.json").write_text(
        '{"settings": {"max_restarts": {"value": 1, "origin": "--max-restarts"}}}'
    )
    out = shell("show", "--run", "old", "--origin")[1]
    assert out == "max_restarts = 1  # --max-restarts\n"
    (run / "config.json").write_text("{}")
    code, _, err = shell("show", "--run", "old")
    assert code == 2
    assert "no settings in it" in err


def completed(here: Path, words: str) -> list[str]:
    """What bash is told to offer for the last of `words`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_HARNESS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "harness"],
        env=environment, cwd=here, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_tab_knows_commands_runs_and_options(tmp_path: Path) -> None:
    (tmp_path / "runs" / "swift-otter-12").mkdir(parents=True)
    (tmp_path / "runs" / "swift-otter-12" / "journal.jsonl").touch()
    assert completed(tmp_path, "harness ") == list(COMMANDS)
    assert completed(tmp_path, "harness report sw") == ["swift-otter-12"]
    assert completed(tmp_path, "harness run --max") == ["--max-restarts"]
    assert completed(tmp_path, "harness explain rank_f") == ["rank_frozen"]


def parameters(command: click.Command, words: str) -> Iterator[tuple[str, click.Parameter]]:
    """Of `command` and all below it, each with what is typed before it."""
    context = click.Context(command, info_name=words)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from parameters(below, f"{words} {name}")
    for each in command.params:
        yield words, each


KINDS = {
    "DIR": "dir", "FILE": "file", "directory": "dir", "file": "file", "script": "file",
    "plan": "file", "run": "plain",
}  # fmt: skip
"""By metavar, or by the name of an argument: what Tab must offer."""


def test_tab_offers_runs_files_and_folders_wherever_they_can_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "swift-otter-12").mkdir(parents=True)
    (tmp_path / "runs" / "swift-otter-12" / "journal.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    seen = set()
    for words, each in parameters(harness, "harness"):
        named = each.name if isinstance(each, click.Argument) else ""
        kind = KINDS.get(each.metavar or "") or KINDS.get(named or "")
        if kind is None:
            continue
        seen.add(kind)
        context = click.Context(click.Command("any"))
        offered = [(item.type, item.value) for item in each.shell_complete(context, "sw")]
        expected = "swift-otter-12" if kind == "plain" else "sw"
        assert offered == [(kind, expected)], f"{words}: {each.name}"
        if kind == "plain":
            (item,) = each.shell_complete(context, "./")
            assert item.type == "file", f"{words}: {each.name}"
    assert seen == {"dir", "file", "plain"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "runs" / "swift-otter-12").mkdir(parents=True)
    (tmp_path / "runs" / "swift-otter-12" / "journal.jsonl").touch()
    program = tmp_path / "bin" / "harness"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m harness "$@"\n')
    program.chmod(0o755)
    script = """
        source <(harness completion bash)
        COMP_WORDS=(harness tui s) COMP_CWORD=2
        function=$(complete -p harness); function=${function#*-F }; ${function%% *} harness
        echo "${COMPREPLY[@]}"
    """
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["swift-otter-12"]


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_scripts_for_shells_are_whole(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", kind]) == 0
    script = capsys.readouterr().out
    assert f"_HARNESS_COMPLETE={kind}_complete" in script
    if shutil.which(kind):
        subprocess.run([kind, "-n"], input=script, text=True, check=True)
