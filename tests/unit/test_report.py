"""Cards stay small, JSON follows its schemas, the post-mortem tells the whole run."""

import json
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from harness import events as e
from harness import report
from harness.diagnosis.signature import Signature
from harness.incidents import CATALOGUE, CollectiveRef, Incident, Verdict, Where
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import World


def _schema(name: str) -> Any:
    text = resources.files("harness").joinpath("schemas", f"{name}.schema.json").read_text()
    return json.loads(text)


@pytest.fixture(scope="module")
def validators() -> dict[str, Draft202012Validator]:
    schemas = {name: _schema(name) for name in ("incident", "report", "ledger")}
    registry = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()
    )
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    return {
        name: Draft202012Validator(schema, registry=registry) for name, schema in schemas.items()
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_everything_written_follows_its_schema(
    scenario: Scenario, validators: dict[str, Draft202012Validator]
) -> None:
    state = scenario.build().state
    written = json.loads(json.dumps(report.report_json(state)))
    assert [error.message for error in validators["report"].iter_errors(written)] == []
    for incident in state.incidents:
        written = json.loads(json.dumps(report.incident_json(state, incident)))
        assert [error.message for error in validators["incident"].iter_errors(written)] == []
        _is_small(report.card(state, incident))
    assert report.report_text(state).startswith("run brave-otter-12: ")


def test_the_schema_knows_every_class_and_family() -> None:
    properties = _schema("incident")["properties"]
    assert properties["class"]["enum"] == [name for names in CATALOGUE.values() for name in names]
    assert properties["family"]["enum"] == list(CATALOGUE)


def test_a_live_run_has_no_outcome(validators: dict[str, Draft202012Validator]) -> None:
    written = report.report_json(World().start().state)
    assert list(validators["report"].iter_errors(written)) == []
    assert (written["outcome"], written["exit_code"], written["incidents"]) == (None, None, [])


def _is_small(card: str) -> None:
    lines = card.splitlines()
    assert len(lines) <= report.CARD_LINES
    assert max(len(line) for line in lines) <= report.CARD_WIDTH
    assert "\x1b" not in card


def test_a_card_of_sixteen_thousand_ranks_is_small() -> None:
    world = World(nproc=16384).start()
    verdict = Verdict(
        verdict="shape_mismatch",
        first_failing=tuple(range(1, 16384, 2)),
        victims=tuple(range(0, 16384, 4)),
        innocent=tuple(range(2, 16384, 4)),
        cause="x" * 3000 + " and " * 500,
        reason="y" * 5000,
        confidence="likely",
        onset_ns=world.now_ns,
        attempt=0,
        step=3,
        signature=Signature(verdict="shape_mismatch", what="all_reduce").text(),
        coordinates={"dp": 1, "pp": 0, "tp": 3},
        node="nodes 0-2047",
        where=Where(file="/very/long/" * 30 + "train.py", line=3, function="f" * 200),
        collective=CollectiveRef(
            pg="0", pg_desc="mesh_tp", op="all_reduce", seq_id=4, sizes=((4096, 4096),) * 50
        ),
    )
    incident = Incident(
        id=1, verdict=verdict, action="stop", action_reason="z" * 900, detected_ns=world.now_ns
    )
    card = report.card(world.state, incident)
    _is_small(card)
    assert "(8192 in all)" in card


def test_a_card_names_rank_coordinates_node_cause_line_and_cost() -> None:
    world = World(nproc=4).start()
    for rank in range(4):
        world.say(
            e.MeshDeclared(
                rank=rank, names=("dp", "tp"), sizes=(2, 2), coordinates=divmod(rank, 2)
            ),
            0,
        )
    for step in range(1, 8):
        world.step(step)
    world.save(5)
    world.raises(3, "ZeroDivisionError", "division by zero")
    world.cries(0, 1, 2)
    incident = world.judged()
    assert report.card(world.state, incident).splitlines() == [
        "error[exception]: rank 3 (dp1 tp1, node 0, host0) raised ZeroDivisionError",
        "  cause: ZeroDivisionError: division by zero",
        "  where: /home/u/train.py:12 in train",
        "  when: after step 7 of attempt 0",
        "  victims: ranks 0-2 waited for it or died of it",
        "  next: restart from the checkpoint of step 5: 2 steps done again",
        "  why: the failure may have been of the moment (restart 1; 3 are allowed in 3600 s)",
        "  evidence: brave-otter-12/incidents/001/ (proven)",
        "  more: harness explain exception",
    ]
