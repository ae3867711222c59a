"""Two nodes in network namespaces of their own, with a link for control and one for data, and what
becomes of a training when links are cut, in one direction or both, for good or for a moment, or
are only slow, when packets come late, get lost or are answered with resets, and when a node
vanishes.

Needs root, iproute2, and the kernel's token bucket filter or its TUN devices.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.wire import Wire

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONTROL, DATA = "10.213.77", "10.213.78"
TRAIN = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
count, last = torch.ones(int(sys.argv[1])), 1_000_000
for step in range(last):
    stop = torch.tensor(float(os.path.exists("stop")))
    dist.all_reduce(stop)
    if stop:
        break
    if step >= 20:
        open(f"ready{dist.get_rank()}", "w").close()
    dist.all_reduce(count)
"""


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)


def do(line: str) -> None:
    done = run(*line.split())
    assert done.returncode == 0, f"{line}: {done.stderr}"


class Pair:
    """Two network namespaces that are connected twice."""

    def __init__(self) -> None:
        self.names = [f"hx{os.getpid()}{side}" for side in "ab"]
        self.wires: dict[str, Wire] = {}

    def make(self, *, wires: bool) -> None:
        """With `wires`, every packet passes through this process."""
        for name in self.names:
            do(f"ip netns add {name}")
            do(f"ip -n {name} link set lo up")
        for link, net in (("ctl", CONTROL), ("data", DATA)):
            if wires:
                self.wires[link] = Wire(self.names, link, net)
                continue
            a, b = self.names
            do(f"ip link add {link} netns {a} type veth peer name {link} netns {b}")
            for at, name in enumerate(self.names, 1):
                do(f"ip -n {name} addr add {net}.{at}/24 dev {link}")
                do(f"ip -n {name} link set {link} up")

    def shape(self, how: str) -> None:
        """Let the data's link carry so much, at both ends."""
        for name in self.names:
            do(f"tc -n {name} qdisc replace dev data root tbf {how}")

    def silence(self, sender: int, *links: str) -> None:
        """Nothing that node `sender` sends over `links` arrives, and it is told nothing: its frames
        go to a card that is not there."""
        for link in links:
            self._neighbour(sender, link, "replace", "lladdr 02:00:00:00:00:99 nud permanent")

    def restore(self, sender: int, *links: str) -> None:
        """Undo `silence`."""
        for link in links:
            self._neighbour(sender, link, "del", "")

    def _neighbour(self, sender: int, link: str, verb: str, how: str) -> None:
        other = f"{ {'ctl': CONTROL, 'data': DATA}[link] }.{2 - sender}"
        do(f"ip -n {self.names[sender]} neigh {verb} {other} dev {link} {how}")

    def kill_all(self, node: int) -> None:
        """SIGKILL to everything there."""
        for pid in run("ip", "netns", "pids", self.names[node]).stdout.split():
            with contextlib.suppress(ProcessLookupError):  # it has died with another
                os.kill(int(pid), signal.SIGKILL)

    def until_nobody_is_left(self) -> None:
        """What dies with a killed process takes a moment for it."""
        deadline = time.monotonic() + 60
        while any(run("ip", "netns", "pids", name).stdout.split() for name in self.names):
            assert time.monotonic() < deadline, "a process was left behind"
            time.sleep(0.05)

    def remove(self) -> None:
        for wire in self.wires.values():
            wire.remove()
        for name in self.names:
            run("ip", "netns", "del", name)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Indirect parameter: whether it is made of wires."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        pytest.skip("needs root, and ip and tc of iproute2")
    made, wires = Pair(), getattr(request, "param", False)
    try:
        made.make(wires=wires)
        if not wires:
            made.shape("rate 10gbit burst 10mb limit 10mb")
    except (AssertionError, OSError, subprocess.CalledProcessError) as why:
        made.remove()
        pytest.skip(f"no network namespaces to be had: {why}")
    yield made
    made.remove()


class Nodes:
    """`harness run` on both nodes; the first one's screen and journal."""

    def __init__(self, pair: Pair, folder: Path, numbers: int, *options: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        self.processes = []
        for at, name in enumerate(pair.names):
            meet = [
                *("--nnodes", "2", "--node-rank", str(at), "--nproc-per-node", "1"),
                *("--master-addr", f"{CONTROL}.1", "--max-restarts", "0"),
                *("--runs-dir", str(folder / f"runs{at}"), "--no-zygote", *options),
            ]
            inside = ["ip", "netns", "exec", name, sys.executable, "-m", "harness", "run"]
            with (folder / f"screen{at}").open("w") as screen:
                self.processes.append(
                    subprocess.Popen(
                        [*inside, *meet, "train.py", str(numbers)],
                        cwd=folder,
                        env={
                            **os.environ,
                            "PYTHONPATH": str(ROOT),
                            "OMP_NUM_THREADS": "1",
                            "GLOO_SOCKET_IFNAME": "data",
                            "HARNESS_TOKEN": "secret",
                        },
                        stdout=screen,
                        stderr=screen,
                    )
                )

    def until(self, check: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 300
        while True:
            ended = self.processes[0].poll() is not None
            if check():  # it may have come true just before the end
                return
            assert not ended, self.screen()
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.05)

    def until_training(self) -> None:
        self.until(lambda: all((self.folder / f"ready{rank}").exists() for rank in (0, 1)))

    def events(self, kind: str) -> list[dict[str, Any]]:
        with (self.folder / "runs0" / "latest" / "journal.jsonl").open() as file:
            next(file)
            records = [json.loads(line) for line in file if line.endswith("\n")]
        return [record["event"] for record in records if record["type"] == kind]

    def steps(self) -> list[int]:
        """Operations that each rank has begun, by its newest pulse."""
        pulses = [pulse for event in self.events("PulsesRead") for pulse in event["pulses"]]
        return list({pulse["rank"]: pulse["collectives"] for pulse in pulses}.values())

    def screen(self, node: int = 0) -> str:
        return (self.folder / f"screen{node}").read_text()

    def end(self) -> int:
        codes = [process.wait(300) for process in self.processes]
        return codes[0]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def nodes(pair: Pair, tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    started: list[Nodes] = []

    def start(numbers: int, *options: str) -> Nodes:
        started.append(Nodes(pair, tmp_path, numbers, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_a_link_that_is_cut_is_proven_and_named(pair: Pair, nodes: Callable[..., Nodes]) -> None:
    job = nodes(1000)
    job.until_training()
    pair.shape("rate 8bit burst 1 limit 1")  # no packet is small enough to pass
    assert job.end() == 80, job.screen()
    (incident,) = (event["incident"] for event in job.events("IncidentOpened"))
    verdict = incident["verdict"]
    assert (verdict["verdict"], verdict["first_failing"]) == ("network_stall", [0, 1])
    assert verdict["confidence"] == "proven"
    assert "what was sent over TCP is not acknowledged, from rank " in verdict["cause"]
    ends = [f"rank {1 - at} on node {1 - at} ({DATA}.{2 - at})" for at in (0, 1)]
    assert any(end in verdict["cause"] for end in ends)


def test_a_link_that_is_slow_is_waited_for(pair: Pair, nodes: Callable[..., Nodes]) -> None:
    job = nodes(500_000)
    job.until_training()
    pair.shape("rate 1mbit burst 16kb limit 64kb")  # two megabytes take sixteen seconds and more

    def moving() -> bool:
        looks = job.events("StallLooked")
        return sum("data is moving" in look["why"] for look in looks) >= 3

    job.until(moving)
    pair.shape("rate 10gbit burst 10mb limit 10mb")
    (job.folder / "stop").touch()
    assert job.end() == 0, job.screen()
    assert job.events("IncidentOpened") == []


@pytest.mark.parametrize("links", [("ctl",), ("ctl", "data")], ids=["controller", "all"])
def test_a_partition_that_heals_is_not_spoken_of(
    pair: Pair, nodes: Callable[..., Nodes], links: tuple[str, ...]
) -> None:
    job = nodes(1000, "--agent-timeout", "30")
    job.until_training()
    for node in (0, 1):
        pair.silence(node, *links)
    time.sleep(1.0)  # this is the harm, and nothing is waited for
    for node in (0, 1):
        pair.restore(node, *links)
    steps = max(job.steps())
    job.until(lambda: min(job.steps()) > steps + 20)
    (job.folder / "stop").touch()
    assert job.end() == 0, job.screen()
    assert job.events("IncidentOpened") == []


@pytest.mark.parametrize("how", ["one way", "vanishes"])
def test_a_node_that_is_not_heard_is_lost_and_the_rest_goes_on(
    pair: Pair, nodes: Callable[..., Nodes], how: str
) -> None:
    job = nodes(1000, "--nnodes", "1:2", "--max-restarts", "1", "--controller-timeout", "10")
    job.until_training()
    pair.silence(1, "ctl", "data")
    if how == "vanishes":
        pair.kill_all(1)
    job.until(lambda: job.events("IncidentOpened"))
    (incident,) = (event["incident"] for event in job.events("IncidentOpened"))
    verdict = incident["verdict"]
    assert (verdict["verdict"], verdict["first_failing"]) == ("node_lost", [1])
    assert incident["action"] == "restart"
    job.until(lambda: [a["world_size"] for a in job.events("AttemptStarted")] == [2, 1])
    (job.folder / "stop").touch()
    assert job.end() == 0, job.screen()
    code = job.processes[1].wait()
    assert code == (-signal.SIGKILL if how == "vanishes" else 82), job.screen(1)
    assert how == "vanishes" or "no word from the controller" in job.screen(1)
    pair.until_nobody_is_left()


@pytest.mark.parametrize("pair", [True], indirect=True, ids=["wires"])
def test_packets_that_come_late_or_never_are_no_fault(
    pair: Pair, nodes: Callable[..., Nodes]
) -> None:
    job = nodes(1000)
    job.until_training()
    for wire in pair.wires.values():
        wire.delay, wire.loss = 0.01, 0.05
    steps = max(job.steps())
    job.until(lambda: min(job.steps()) > steps + 40 and pair.wires["data"].lost > 5)
    (job.folder / "stop").touch()
    assert job.end() == 0, job.screen()
    assert job.events("IncidentOpened") == []


@pytest.mark.parametrize("pair", [True], indirect=True, ids=["wires"])
def test_connections_that_the_network_resets_are_made_again(
    pair: Pair, nodes: Callable[..., Nodes]
) -> None:
    """Nothing tells which end broke it, so both are listed, and no program is accused."""
    job = nodes(1000, "--max-restarts", "1")
    job.until_training()
    pair.wires["data"].resets = True
    job.until(lambda: job.events("IncidentOpened"))
    pair.wires["data"].resets = False
    (incident,) = (event["incident"] for event in job.events("IncidentOpened"))
    assert incident["verdict"]["first_failing"] == [0, 1], job.screen()
    assert incident["action"] == "restart"
    job.until(lambda: len(job.events("AttemptStarted")) >= 2)
    (job.folder / "stop").touch()
    assert job.end() == 0, job.screen()
