"""Strikes against hosts: when they are given, who is left out, what outlives the run."""

import json
import time
from pathlib import Path

import pytest

from harness import events as e
from harness.controller.strike_file import StrikeFile
from harness.faults import Fault
from harness.membership import Strike
from harness.policy import Policy
from tests.replay.world import World

POLICY = Policy(max_restarts=9, same_failure_limit=9)


def running(**more: object) -> World:
    world = World(nnodes=3, min_nodes=2, nproc=1, policy=POLICY, **more)  # type: ignore[arg-type]
    return world.start()


def kill(world: World, rank: int, step: int) -> None:
    world.step(step)
    world.exit(rank, signal=9)
    world.judged()
    world.obey()


def struck(world: World) -> list[tuple[str, str]]:
    return [(strike.host, strike.why) for strike in world.state.strikes]


def attempt_nodes(world: World) -> list[int]:
    assert world.state.attempt is not None
    return list(world.state.attempt.nodes)


def test_a_kill_counts_when_it_comes_to_the_same_host_again() -> None:
    world = running()
    kill(world, 1, 1)
    kill(world, 2, 2)
    assert struck(world) == []
    kill(world, 1, 3)
    assert struck(world) == [("host1", "killed_by_signal")]
    assert attempt_nodes(world) == [0, 1, 2]


def test_a_host_with_two_strikes_is_left_out_and_it_is_said() -> None:
    world = running()
    for step in (1, 2, 3):
        kill(world, 1, step)
    assert struck(world) == [("host1", "killed_by_signal")] * 2
    assert attempt_nodes(world) == [0, 2]
    world.step(4)
    said = "\n".join(world.state.notices)
    assert "host1 (node 1) is left out; it failed before: killed_by_signal, killed_by" in said
    world.save(4)
    assert attempt_nodes(world) == [0, 2], "and it does not grow back"


def test_it_stays_where_there_are_too_few_others() -> None:
    world = World(nnodes=2, nproc=1, policy=POLICY).start()
    for step in (1, 2, 3):
        kill(world, 1, step)
    world.step(4)
    assert attempt_nodes(world) == [0, 1]
    said = "\n".join(world.state.notices)
    assert "host1 (node 1) stays because there are too few others" in said


def test_a_spare_takes_the_place_of_a_host_with_strikes() -> None:
    world = World(nnodes=2, spares=1, nproc=1, policy=POLICY)
    for node in range(3):
        world.join(node)
    world.obey()
    for step in (1, 2, 3):
        kill(world, 1, step)
    assert attempt_nodes(world) == [0, 2]


def test_a_lost_node_is_a_strike_at_once_and_remembered_when_it_is_back() -> None:
    world = World(nnodes=2, spares=1, nproc=1, policy=Policy(quarantine=1))
    for node in range(3):
        world.join(node)
    world.obey()
    world.step(1)
    world.lose(1)
    world.judged()
    world.obey()
    assert struck(world) == [("host1", "node_lost")]
    world.join(1, pid=55)
    world.step(2)
    world.exit(1, signal=9)
    world.judged()
    world.obey()
    assert attempt_nodes(world) == [0, 2]


def test_strikes_of_earlier_runs_count_within_the_window() -> None:
    old = Strike(host="host1", run="old", incident=1, why="node_lost", at_ns=0)
    world = running()
    at_ns = world.now_ns - 10**9
    new = Strike(host="host2", run="old", incident=2, why="rank_frozen", at_ns=at_ns)
    world.state.strikes[:] = [old, new, new]
    assert world.state.struck_out == {"host2"}


def test_harm_done_on_purpose_is_no_strike() -> None:
    world = running(chaos_allowed=True)
    world.step(1)
    fault = Fault(kind="kill", rank=1)
    world.say(e.FaultInjected(fault=fault, pid=1, injected_ns=world.now_ns), 1)
    for step in (2, 3, 4):
        kill(world, 1, step)
    assert struck(world) == []


def test_one_node_alone_gets_no_strikes() -> None:
    world = World(nproc=2, policy=POLICY).start()
    for step in (1, 2, 3):
        kill(world, 1, step)
    assert struck(world) == []


def test_the_file_keeps_strikes_once_and_forgets_old_ones(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    fresh = Strike(host="a", run="r", incident=1, why="node_lost", at_ns=now_ns)
    stale = Strike(host="b", run="r", incident=2, why="node_lost", at_ns=now_ns - 10**14)
    file = StrikeFile(tmp_path, 86400.0, pytest.fail)
    assert file.read() == ()
    file.add(fresh, stale)
    file.add(fresh)
    assert file.read() == (fresh,)
    assert len(json.loads((tmp_path / "strikes.json").read_text())["strikes"]) == 2


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"schema": 2, "strikes": []}', '{"schema": 1, "strikes": [{}]}']
)
def test_a_bad_file_is_said_once_and_put_aside(tmp_path: Path, content: str) -> None:
    (tmp_path / "strikes.json").write_text(content)
    said: list[str] = []
    file = StrikeFile(tmp_path, 86400.0, said.append)
    assert file.read() == file.read() == ()
    assert len(said) == 1
    assert "no list of strikes in it" in said[0]
    assert "\n" not in said[0]
    assert (tmp_path / "strikes.json.bad").read_text() == content
