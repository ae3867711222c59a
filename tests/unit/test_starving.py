"""What waits for a CPU is told from what waits for something else, by the kernel's own books."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agent.activity import between, read
from harness.controller.agents import Agent
from harness.controller.upkeep import Neighbours

LOOP = "while True: pass"


@pytest.fixture
def crowded() -> Iterator[int]:
    """A process of the lowest priority, on a CPU that two others want."""
    cpu = min(os.sched_getaffinity(0))

    def process(nice: int) -> "subprocess.Popen[bytes]":
        def settle() -> None:
            os.sched_setaffinity(0, {cpu})
            os.nice(nice)

        return subprocess.Popen(
            [sys.executable, "-S", "-c", LOOP, "harness.agent"],
            preexec_fn=settle,  # noqa: PLW1509
        )

    processes = [process(19), process(0), process(0)]
    yield processes[0].pid
    for each in processes:
        each.kill()
        each.wait()


def test_a_process_that_gets_no_cpu_starves(crowded: int) -> None:
    first = read(crowded, Path("none"))
    while (found := between(first, read(crowded, Path("none")))).seconds < 0.2:
        pass
    while found.starved_seconds < found.seconds / 4:
        found = between(first, read(crowded, Path("none")))
    assert found.starved_seconds <= found.seconds


def test_a_process_that_sleeps_does_not_starve() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        first = read(process.pid, Path("none"))
        while (found := between(first, read(process.pid, Path("none")))).seconds < 0.05:
            if found.starved_seconds:  # on its way to sleep
                first = read(process.pid, Path("none"))
        process.kill()
    assert found.starved_seconds == 0


def test_only_of_an_agent_of_this_machine_it_is_known_that_it_starves(crowded: int) -> None:
    here = Agent(node_rank=0, host=socket.gethostname(), pid=crowded, base=0)
    elsewhere = Agent(node_rank=1, host="elsewhere", pid=crowded, base=0)
    other = Agent(node_rank=2, host=here.host, pid=os.getpid(), base=0)
    neighbours = Neighbours()
    assert neighbours.starved(here) == 0.0
    while neighbours.starved(here) == 0.0:
        pass
    assert neighbours.starved(elsewhere) == neighbours.starved(other) == 0.0
