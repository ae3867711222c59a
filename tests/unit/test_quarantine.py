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
from harness.sightings import Doubt
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


def corrupt(world: World, step: int) -> None:
    """Rank 1 finds other bits in its own shard before the step after `step`."""
    world.step(step)
    doubt = Doubt(
        check="at rest", subject="parameters", step=step, at_ns=world.now_ns, tensors=("w",),
        differ=1, total=40,
    )  # fmt: skip
    world.say(e.DoubtRaised(rank=1, doubt=doubt), world.node_of(1))
    for _ in range(20):
        world.step(step)
    world.obey()


def test_a_corruption_is_a_strike_of_the_device_in_runs_of_one_node_too() -> None:
    world = World(nproc=2, policy=POLICY).start()
    corrupt(world, 1)
    (strike,) = world.state.strikes
    assert (strike.why, strike.local_ranks) == ("silent_data_corruption", (1,))
    said = "\n".join(world.state.notices)
    assert "  strikes: host0 has 1 of 2, local rank 1 this time\n" in said
    corrupt(world, 30)
    assert len(world.state.strikes) == 2
    world.step(60)
    said = "\n".join(world.state.notices)
    assert "host0 has 2 of 2, local rank 1 this time; left out where others can take" in said
    assert "host0 (node 0) stays because it holds the controller; it failed before: sil" in said


def test_a_device_that_has_corrupted_twice_is_left_out_with_its_host() -> None:
    """Of three nodes: it was struck in an earlier run, weeks ago."""
    world = running()
    weeks = 30 * 86400 * 10**9
    old = {"host": "host1", "run": "old", "incident": 1, "local_ranks": (0,)}
    at_ns = world.now_ns - weeks
    strike = Strike(**old, why="silent_data_corruption", at_ns=at_ns)  # type: ignore[arg-type]
    lost = Strike(**old, why="node_lost", at_ns=at_ns)  # type: ignore[arg-type]
    world.state.strikes[:] = [strike, lost, lost]
    assert world.state.struck_out == set()
    corrupt(world, 1)
    assert attempt_nodes(world) == [0, 2]


def test_the_same_corruption_at_the_same_step_is_no_strike() -> None:
    world = World(nproc=2, policy=POLICY).start()
    corrupt(world, 1)
    corrupt(world, 1)
    assert len(world.state.incidents) == 2
    assert len(world.state.strikes) == 1


def test_the_file_keeps_strikes_once_and_forgets_old_ones(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    fresh = Strike(host="a", run="r", incident=1, why="node_lost", at_ns=now_ns)
    stale = Strike(host="b", run="r", incident=2, why="node_lost", at_ns=now_ns - 10**14)
    why, at_ns = "silent_data_corruption", now_ns - 10**14
    bits = Strike(host="c", run="r", incident=3, why=why, at_ns=at_ns, local_ranks=(2, 5))
    file = StrikeFile(tmp_path, 86400.0, pytest.fail)
    assert file.read() == ()
    file.add(fresh, stale, bits)
    file.add(fresh)
    assert file.read() == (fresh, bits)
    path = tmp_path / "strikes.json"
    assert len(json.loads(path.read_text())["strikes"]) == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_older_versions_have_written_counts(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    one = {"host": "a", "run": "r", "incident": 1, "why": "node_lost", "at_ns": now_ns}
    (tmp_path / "strikes.json").write_text(json.dumps({"schema": 1, "strikes": [one]}))
    (read,) = StrikeFile(tmp_path, 86400.0, pytest.fail).read()
    assert (read.host, read.local_ranks) == ("a", ())


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
