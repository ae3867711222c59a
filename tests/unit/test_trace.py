"""The Chrome trace: by its format, and true to what the records say."""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jsonschema
import pytest

from harness import events as e
from harness.collectives import Collective
from harness.sightings import RankArrivals
from harness.trace import FIRST_GROUP, RANK_PID, RUN_PID, Tracer
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import World

SCHEMA = json.loads(resources.files("harness").joinpath("schemas", "trace.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def traced(world: World, **options: Any) -> list[dict[str, Any]]:
    tracer = Tracer(world.state, **options)
    for record in world.records:
        tracer.take(record)
    return list(tracer.events())


def check_format(events: Sequence[dict[str, Any]]) -> None:
    """By the schema, and what no schema can say: on one track slices nest, and names come first."""
    facts = {"schema": 1, "run": "x", "started_ns": 0}
    whole = {"displayTimeUnit": "ms", "otherData": facts, "traceEvents": list(events)}
    VALIDATOR.validate(json.loads(json.dumps(whole, allow_nan=False)))
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert event["ts"] >= ends.get(track, 0.0) - 0.002, event
            ends[track] = event["ts"] + event["dur"]
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} <= named


SOME = [each for each in SCENARIOS if each.name.startswith(("crash", "exception", "teardown"))]


@pytest.mark.parametrize("scenario", SOME, ids=lambda scenario: scenario.name)
def test_every_scenario_keeps_the_format(scenario: Scenario) -> None:
    world = scenario.build()
    events = traced(world)
    check_format(events)
    told = [event for event in events if (event["pid"], event["ph"]) == (RUN_PID, "i")]
    assert len(told) >= len(world.state.incidents)


def arrived(world: World, seq: int, *entered_us: int) -> None:
    ranks = tuple(
        RankArrivals(rank=rank, records=(seq,), groups=(0,), seqs=(seq,), entered_us=(us,))
        for rank, us in enumerate(entered_us)
    )
    event = e.ArrivalsRead(
        node_rank=0, base_ns=world.now_ns, groups=("0",), ops=("all_reduce",), ranks=ranks
    )
    world.say(event, 0)


def collectives(events: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By rank, of traces with one collective."""
    slices = [event for event in events if event["ph"] == "X" and event["tid"] >= FIRST_GROUP]
    return {event["pid"] - RANK_PID: event for event in slices}


def world_with_group() -> World:
    world = World(nproc=3).start()
    world.say(e.GroupCreated(rank=0, pg="0", pg_desc="mesh_dp", ranks=(0, 1, 2)), 0)
    return world


def test_a_slice_lasts_until_the_last_member_comes() -> None:
    world = world_with_group()
    arrived(world, 7, 0, 5000, 2000)
    found = collectives(traced(world))
    assert [found[rank]["dur"] for rank in range(3)] == [5000.0, 1.0, 3000.0]
    assert {slice_["args"]["last_to_enter"] for slice_ in found.values()} == {1}
    assert found[0]["name"] == "all_reduce #7"
    names = [event for event in traced(world) if event["tid"] == FIRST_GROUP]
    assert names[0]["args"] == {"name": "mesh_dp (0)"}


def test_one_that_a_member_never_entered_lasts_to_the_end() -> None:
    world = world_with_group()
    for rank in (0, 2):
        told = Collective(
            record_id=3, pg="0", pg_desc="mesh_dp", seq_id=9, op="gloo:all_reduce", sizes=((4,),),
            dtypes=("Float",), state="scheduled", retired=False, created_ns=world.now_ns,
        )  # fmt: skip
        world.say(e.EvidenceTaken(collection=0, rank=rank, process=None, collectives=(told,)), 0)
    world.now_ns += 4_000_000_000
    arrived(world, 1, 0, 0, 0)
    hung = [event for event in traced(world) if "not finished" in event["name"]]
    assert [event["args"]["not_on_record"] for event in hung] == ["1", "1"]
    assert all(event["dur"] >= 4e6 for event in hung)


def test_ranks_and_attempts_can_be_chosen() -> None:
    world = world_with_group()
    arrived(world, 7, 0, 5000, 2000)
    assert set(collectives(traced(world, ranks={2}))) == {2}
    assert collectives(traced(world, attempt=1)) == {}
