"""Real nodes on loopback are killed and replaced; every rank is a small process of its own."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from harness.portholder import free_port
from tests.run.test_launcher import UNTIL_TOLD, Launched
from tests.run.test_launcher import launch as launch  # noqa: PLC0414 - a fixture

TRAIN = """\
import os, time
import harness
name = os.environ["RANK"] + "." + os.environ["TORCHELASTIC_RESTART_COUNT"]
pids = os.environ["PIDS"]
open(os.path.join(pids, name), "w").write(os.environ["GROUP_RANK"] + os.environ["WORLD_SIZE"])
step = 0
while not os.path.exists(os.path.join(pids, "go")):
    step += 1
    time.sleep(0.05)
    harness.progress(step)
    harness.checkpoint_saved(step, "ck", 0.0)
"""
AGAIN = UNTIL_TOLD.replace("$RANK.0", "$RANK.$TORCHELASTIC_RESTART_COUNT")
JOIN = ("--rdzv-conf", "is_host=0")
Start = Callable[..., Launched]


def kill_node(node: Launched) -> None:
    """As if its machine went: the launcher dies, and all below it with it."""
    node.process.send_signal(signal.SIGKILL)
    node.process.wait(240)


def attempts(head: Launched) -> list[list[int]]:
    """The nodes of each attempt."""
    started: list[dict[str, Any]] = head.events("AttemptStarted")
    return [[node["node_rank"] for node in event["nodes"]] for event in started]


@pytest.mark.slow
def test_a_run_shrinks_when_a_node_dies_and_grows_when_one_joins(launch: Start) -> None:
    meet = [
        *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
        *("--max-restarts", "1"),
    ]
    head = launch(TRAIN, *meet, "--node-rank", "0", python=True)
    other = launch(TRAIN, *meet, *JOIN, folder_of_run="b", python=True)
    head.until_working("0.0", "1.0")
    kill_node(other)
    head.until_working("0.1")
    third = launch(TRAIN, *meet, *JOIN, folder_of_run="c", python=True)
    head.until_working("0.2", "1.2")
    worlds = {name: (head.pids / name).read_text() for name in ("1.0", "0.1", "1.2")}
    assert worlds == {"1.0": "12", "0.1": "01", "1.2": "12"}
    (head.pids / "go").touch()
    code, lines = head.end()
    assert (code, third.end()[0]) == (0, 0)
    assert attempts(head) == [[0, 1], [0], [0, 1]]
    text = "\n".join(lines)
    assert "error[node_lost]" in text
    assert "why: goes on with 1 node and 1 ranks instead of 2" in text
    assert "the run grows to 2 nodes with node 1, from the checkpoint of step" in text


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_dead_node(launch: Start) -> None:
    meet = [
        *("--nnodes", "2", "--spares", "1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
    ]
    head = launch(AGAIN, *meet, "--node-rank", "0")
    nodes = [launch(AGAIN, *meet, *JOIN, folder_of_run=name) for name in "bc"]
    head.until_working("0.0", "1.0")
    head.until(lambda: len(head.events("AgentJoined")) >= 3, "the spare is here")
    (member,) = (e["pid"] for e in head.events("AgentJoined") if e["node_rank"] == 1)
    dying = next(node for node in nodes if node.pid_of("agent") == member)
    kill_node(dying)
    head.until_working("0.1", "1.1")
    (head.pids / "go").touch()
    assert head.end()[0] == 0
    assert [node.end()[0] for node in nodes if node is not dying] == [0]
    assert attempts(head) == [[0, 1], [0, 2]]


@pytest.mark.slow
def test_a_node_that_comes_too_late_for_a_fixed_run_is_told(launch: Start) -> None:
    meet = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    head = launch(AGAIN, *meet, "--node-rank", "0")
    other = launch(AGAIN, *meet, *JOIN, folder_of_run="b")
    head.until_working("0.0", "1.0")
    late = launch(AGAIN, *meet, *JOIN, folder_of_run="c")
    code, lines = late.end()
    assert code == 2
    assert "all 2 nodes have joined (--nnodes 2)" in "\n".join(lines)
    (head.pids / "go").touch()
    assert [run.end()[0] for run in (head, other)] == [0, 0]
