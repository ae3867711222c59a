"""A real agent under test: its orders come from the test, its records go to the test."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from harness import codec, events, orders
from harness.config import Job
from harness.policy import Policy

DRIVER = Path(__file__).with_name("agent_driver.py")
ROOT = Path(__file__).parents[3]
PATIENCE = 240.0
E = TypeVar("E")


def wait_until(check: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Poll `check` until it is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


class Node:
    """One agent process and what it has reported."""

    def __init__(self, folder: Path, *, launch_line: list[str] | None = None, **job: Any) -> None:
        self.folder = folder
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="harness-test-"))
        self.script = folder / "train.py"
        if not self.script.exists():
            self.script.write_text("")
        fields = {
            "run": "run",
            "runs_dir": str(folder),
            "script": str(self.script),
            "python": sys.executable,
            "cwd": str(folder),
            "nproc_per_node": 2,
            "policy": Policy(pulse_interval=0.05),
            **job,
        }
        self.job = Job(**fields)
        self.job.write(self.runtime_dir / "job.json")
        self.run_dir = folder / "run"
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self._end = ours
        self._lines = ours.makefile("rb")
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        with theirs, self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    *(launch_line or []),
                    sys.executable,
                    str(DRIVER),
                    str(self.runtime_dir),
                    str(theirs.fileno()),
                ],
                stdout=out,
                stderr=err,
                pass_fds=[theirs.fileno()],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
        self.records: list[events.Record] = []
        self.commands: list[dict[str, Any]] = []
        self.attempt = -1

    def order(self, order: orders.Order) -> None:
        self._end.sendall(codec.encode_order(order) + b"\n")

    def read(self) -> events.Event | None:
        """The next event; None when the agent has hung up."""
        line = self._lines.readline()
        if not line:
            return None
        if line.startswith(b'{"command"'):
            self.commands.append(json.loads(line)["command"])
            return self.read()
        record = codec.decode(line)
        self.records.append(record)
        return record.event

    def until(self, kind: type[E], check: Callable[[E], bool] = lambda event: True) -> E:
        """Read until an event of `kind` passes `check`."""
        deadline = time.monotonic() + PATIENCE
        while True:
            event = self.read()
            assert event is not None, self.err.read_text()
            assert time.monotonic() < deadline, f"no {kind.__name__}: {self.err.read_text()}"
            if isinstance(event, kind) and check(event):
                return event

    def launch(
        self, source: str = "", ranks: int = 2, store_is_up: Callable[[], object] = lambda: None
    ) -> list[events.Event]:
        """Start the next attempt with `source` as script; its events begin with what it returns."""
        if source:
            self.script.write_text(textwrap.dedent(source))
        self.attempt += 1
        del self.records[:]
        self.order(orders.HostStore(attempt=self.attempt, address="127.0.0.1", port=0))
        store = self.until(events.StoreReady)
        store_is_up()
        self.order(
            orders.StartWorkers(
                attempt=self.attempt,
                first_rank=0,
                local_world_size=ranks,
                world_size=ranks,
                node_rank=0,
                nnodes=1,
                master_addr=store.address,
                master_port=store.port,
                max_restarts=3,
            )
        )
        started = [self.until(events.WorkerStarted) for _ in range(ranks)]
        return list(started)

    def finish(self, ranks: int = 2) -> dict[int, events.WorkerExited]:
        """Wait until all ranks of the attempt have exited."""
        exits: dict[int, events.WorkerExited] = {
            event.rank: event for event in self.of(events.WorkerExited)
        }
        while len(exits) < ranks:
            event = self.until(events.WorkerExited)
            exits[event.rank] = event
        return exits

    def of(self, kind: type[E]) -> list[E]:
        return [record.event for record in self.records if isinstance(record.event, kind)]

    def log(self, rank: int) -> str:
        path = self.run_dir / "logs" / f"attempt{self.attempt}" / f"rank{rank:05d}.log"
        return path.read_text()

    def stop(self, grace: float = 0.0) -> None:
        self.order(orders.StopWorkers(attempt=self.attempt, grace=grace, why="test"))
        self.until(events.WorkersStopped)

    def shutdown(self, exit_code: int = 0) -> int:
        self.order(orders.Shutdown(exit_code=exit_code, reason="test"))
        while self.read() is not None:
            pass
        return self.process.wait(PATIENCE)

    def hang_up(self) -> None:
        """What a lost controller looks like."""
        self._end.shutdown(socket.SHUT_WR)

    wait_until = staticmethod(wait_until)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR2)
            self.process.wait(PATIENCE)
        self._lines.close()
        self._end.close()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One agent with its zygote for many attempts; every test launches its own."""
    made = Node(tmp_path_factory.mktemp("node"))
    yield made
    made.close()


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes agents of the test's own."""
    made: list[Node] = []

    def make(**job: Any) -> Node:
        made.append(Node(tmp_path, **job))
        return made[-1]

    yield make
    for each in made:
        each.close()
