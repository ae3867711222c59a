"""`harness analyze` as a person and a program meet it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import harness
from harness.cli import group
from harness.report import CARD_LINES, CARD_WIDTH
from tests.analyze.job import Job, Stop, write
from tests.analyze.programs import edited, megatron


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job(edited(megatron()[0], 3, 9, Stop(), drop=0)).run()
    return write(job, tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(Job(megatron()[0]).run(), tmp_path_factory.mktemp("healthy"))


def _schema(name: str) -> Any:
    path = Path(harness.__file__).parent / "schemas" / f"{name}.schema.json"
    return json.loads(path.read_text())


def test_the_card_of_a_late_rank(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", str(late)]) == 0
    card, _, rest = capsys.readouterr().out.partition("\n\n")
    lines = card.splitlines()
    assert (
        lines[0] == "error[rank_stuck_outside_collective]: rank 3 is stuck outside any collective"
    )
    assert len(lines) <= CARD_LINES
    assert max(map(len, lines)) <= CARD_WIDTH
    assert "victims: ranks 0-2,4-15 wait for it" in card
    assert rest.strip() == "16 of 16 ranks on record"


def test_the_json_follows_its_schema(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (late / "rank99.json").write_text("{")
    assert group.call(["analyze", str(late), "--json", "--groups"]) == 0
    written = json.loads(capsys.readouterr().out)
    (late / "rank99.json").unlink()
    incident = _schema("incident")
    registry = Registry().with_resource(incident["$id"], Resource.from_contents(incident))
    validator = Draft202012Validator(_schema("analyze"), registry=registry)
    assert [error.message for error in validator.iter_errors(written)] == []
    assert [told["first_failing"] for told in written["incidents"]] == [[3]]
    assert written["unreadable"][0]["rank"] == 99
    missing = {told["pg_desc"]: told["missing"] for told in written["groups"] if told["missing"]}
    assert missing["mesh_tp"] == [3]


def test_the_group_table(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", str(late), "--groups"]) == 0
    out = capsys.readouterr().out
    assert "mesh_tp (2), ranks 2-3: #" in out
    assert "  missing: 3\n" in out


def test_nothing_is_wrong(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", str(healthy), "--check"]) == 0
    assert capsys.readouterr().out == (
        "no hang and no desync: nothing is pending; 16 of 16 ranks on record\n"
    )


def test_exit_code_on_request(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", str(late), "--check"]) == 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze"], "missing argument DIR"),
        (["analyze", "nowhere"], "no such directory: nowhere"),
        (["analyze", "--group"], "no such option: --group"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert group.call(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.match(rf"error\[H(001|304)\]: {words}", told.err)
    assert len(told.err.splitlines()) <= 2


def test_an_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", "nowhere", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert group.call(["analyze", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == _schema("analyze")
