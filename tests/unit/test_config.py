"""Where values come from, and what is refused."""

import dataclasses
import json
import stat
from pathlib import Path

import pytest

from harness import config, settings
from harness.config import Job
from harness.errors import PlatformError, SettingsError, UsageError
from harness.policy import Policy
from harness.policyhelp import OFF, POLICY_HELP
from harness.settings import BY_NAME, parse


def test_every_layer_beats_the_ones_below_it(tmp_path: Path) -> None:
    home = tmp_path / "home" / "harness"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("max_restarts = 1\nstop_grace = 1.5\nrole = 'home'\n")
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\nmax-restarts = 2\nrole = 'project'\n")
    (tmp_path / "harness.toml").write_text("max_restarts = 3\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "home")}

    def value(command_line: dict[str, str | bool], **more: str) -> tuple[object, str]:
        found = config.resolve(command_line, environ={**environ, **more}, cwd=tmp_path)
        return found.values["max_restarts"].value, found.origin("max_restarts")

    assert value({}) == (3, str(tmp_path / "harness.toml"))
    assert value({}, PET_MAX_RESTARTS="4") == (4, "PET_MAX_RESTARTS")
    assert value({}, PET_MAX_RESTARTS="4", HARNESS_MAX_RESTARTS="5") == (5, "HARNESS_MAX_RESTARTS")
    assert value({"max_restarts": "6"}, HARNESS_MAX_RESTARTS="5") == (6, "--max-restarts")
    found = config.resolve({}, environ=environ, cwd=tmp_path)
    assert found.text("role") == "project"
    assert found.policy().stop_grace == 1.5
    assert found.policy().restart_window == Policy().restart_window
    assert found.origin("restart_window") == "default"


def test_pet_counts_only_for_what_torchrun_has(tmp_path: Path) -> None:
    environ = {"PET_NPROC_PER_NODE": "3", "PET_STOP_GRACE": "9"}
    found = config.resolve({}, environ=environ, cwd=tmp_path)
    assert found.text("nproc_per_node") == "3"
    assert found.policy().stop_grace == Policy().stop_grace


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        (
            "max_restart = 1",
            "harness.toml: unknown key 'max_restart'",
            "did you mean max_restarts?",
        ),
        ("[run]\nx = 1", "harness.toml: unknown key 'run'", None),
        ("max_restarts = 'many'", "harness.toml: max_restarts: 'many' is not a whole number", None),
        ("max_restarts = 1.5", "harness.toml: max_restarts: 1.5 is not a whole number", None),
        ("max_restarts = true", "harness.toml: max_restarts: True is not a whole number", None),
        ("max_restarts = -1", "harness.toml: max_restarts: -1 is less than 0", None),
        (
            "digest_share = 2",
            "harness.toml: digest_share: 2 is more than the whole",
            "give a share of 1, such as 0.01",
        ),
        (
            "digest_share = 0",
            "harness.toml: digest_share: 0 is less than 0.0001",
            "--digests 0 switches digests off",
        ),
        ("stop_grace = nan", "harness.toml: stop_grace: nan is not a number", None),
        ("module = 'perhaps'", "harness.toml: module: 'perhaps' is not true or false", None),
        ("role = [1]", "harness.toml: role: [1] is not a text", None),
        ("tee = '7'", "harness.toml: tee: '7' is not a choice of streams", None),
        ("start_method = 'x'", "harness.toml: start_method: 'x' is not possible", None),
        ("a = = b", "harness.toml: ", None),
    ],
)
def test_a_wrong_file_is_one_line_naming_file_and_key(
    tmp_path: Path, text: str, message: str, help: str | None
) -> None:
    (tmp_path / "harness.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        config.resolve({}, environ={}, cwd=tmp_path)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert help is None or caught.value.help == help


def test_a_broken_pyproject_of_others_is_their_business(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\na = = b\n")
    assert config.resolve({}, environ={}, cwd=tmp_path).text("role") == "default"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError, match="HARNESS_STOP_GRACE: 'soon' is not a number"):
        config.resolve({}, environ={"HARNESS_STOP_GRACE": "soon"}, cwd=Path("/"))


def test_a_mistyped_variable_is_told_and_others_are_left_alone() -> None:
    found = config.unknown_variables(
        {"HARNESS_MAX_RESTART": "1", "HARNESS_TOKEN": "x", "HARNESS_STOP_GRACE": "1", "HOME": "/"}
    )
    assert found == [
        "HARNESS_MAX_RESTART is not a setting and does nothing; did you mean HARNESS_MAX_RESTARTS?"
    ]


def test_every_limit_of_the_policy_can_be_set() -> None:
    assert {field.name for field in dataclasses.fields(Policy)} <= set(settings.BY_NAME)


def test_ranks_are_read_as_numbers_and_ranges() -> None:
    assert settings.parse_ranks("") == ()
    assert settings.parse_ranks("3,0-1,1") == (0, 1, 3)
    for wrong in ("a", "1-", "-1", "1-b"):
        with pytest.raises(ValueError, match="not a rank"):
            settings.parse_ranks(wrong)


def _job() -> Job:
    return Job(
        run="swift-otter-12",
        runs_dir="/data/runs",
        script="train.py",
        script_args=("--lr", "3e-4", ""),
        python="/usr/bin/python3",
        python_flags=("-X", "dev"),
        policy=Policy(max_restarts=7, stop_grace=0.5),
        token="secret",
        local_ranks_filter=(0, 2),
        cwd="/home/me",
    )


def test_a_job_is_read_as_it_was_written_and_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    _job().write(path)
    assert Job.read(path) == _job()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Job.read(path).run_dir == Path("/data/runs/swift-otter-12")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"policy": {"no": 1}}', "{"])
def test_a_file_that_holds_no_job_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(PlatformError, match=r"job\.json: no job in it"):
        Job.read(path)
    with pytest.raises(PlatformError, match=r"gone\.json: no job in it"):
        Job.read(tmp_path / "gone.json")


def test_the_written_configuration_names_every_origin(tmp_path: Path) -> None:
    found = config.resolve({"nproc_per_node": "2"}, environ={}, cwd=tmp_path)
    config.write_config(tmp_path / "config.json", found, harness="1.0")
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["schema"] == 1
    assert data["harness"] == "1.0"
    assert data["settings"]["nproc_per_node"] == {"value": "2", "origin": "--nproc-per-node"}
    assert set(data["settings"]) == set(settings.BY_NAME)


def test_where_0_is_refused_it_is_said_how_to_have_nothing() -> None:
    refusing = {name for name, (_, _, least, _) in POLICY_HELP.items() if least > 0}
    assert set(OFF) <= refusing
    for name in OFF:
        with pytest.raises(SettingsError) as told:
            parse(BY_NAME[name], "0", name)
        assert told.value.help == OFF[name]
        if "1e9" in OFF[name]:
            assert parse(BY_NAME[name], "1e9", name) == 1e9
