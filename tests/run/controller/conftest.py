"""Real controller processes on loopback, and agents that are real links without workers."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness import events as e
from harness import journal
from harness.config import Job
from harness.policy import Policy
from harness.wire.agent_link import AgentLink

SCRIPTED = Path(__file__).with_name("scripted.py")
ROOT = Path(__file__).parents[3]


class Controller:
    """One run directory and the controller processes that serve it, one after the other."""

    def __init__(self, run_dir: Path, *, bind: str, program: list[str], job: Job) -> None:
        self.run_dir = run_dir
        self.bind = bind
        self.job = job
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._program = program
        job.write(run_dir / "job.json")

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal.jsonl"

    def start(self) -> dict[str, str]:
        """Start a process; its ready line. The address it got is kept for the next one."""
        read_end, write_end = os.pipe()
        program = [
            part.format(dir=self.run_dir, bind=self.bind, fd=write_end) for part in self._program
        ]
        self.end()
        with (self.run_dir / "stderr.txt").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                pass_fds=[write_end],
                stdin=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        os.close(write_end)
        with os.fdopen(read_end, "rb") as file:
            ready: dict[str, str] = json.loads(file.read())
        if "address" in ready:
            self.address = self.bind = ready["address"]
        return ready

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=240)

    def records(self) -> list[e.Record]:
        return list(journal.read(self.journal))

    def stderr(self) -> str:
        return (self.run_dir / "stderr.txt").read_text()

    def log(self) -> str:
        return (self.run_dir / "controller.log").read_text()

    def link(self, node_rank: int = 0, **changes: Any) -> AgentLink:
        given: dict[str, Any] = {
            "address": self.address,
            "node_rank": node_rank,
            "local_world_size": 2,
            "host": f"host{node_rank}",
            "pid": 1000 + node_rank,
            "token": self.job.token,
            "controller_timeout": 20.0,
            **changes,
        }
        return AgentLink(**given)

    def end(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            self.process.stdin.close()


class MakeController(Protocol):
    def __call__(
        self,
        *,
        start: bool = True,
        bind: str = "127.0.0.1:0",
        name: str = "t",
        scripted: bool = True,
        **job: Any,
    ) -> Controller: ...


@pytest.fixture
def make_controller(tmp_path: Path) -> Iterator[MakeController]:
    made: list[Controller] = []

    def make(
        *,
        start: bool = True,
        bind: str = "127.0.0.1:0",
        name: str = "t",
        scripted: bool = True,
        **job: Any,
    ) -> Controller:
        run_dir = tmp_path / name
        run_dir.mkdir()
        settings: dict[str, Any] = {
            "run": name,
            "runs_dir": str(tmp_path),
            "script": "train.py",
            "script_args": ("--lr", "1"),
            "python": sys.executable,
            "cwd": str(tmp_path),
            "policy": Policy(agent_timeout=20.0),
            **job,
        }
        program = [str(SCRIPTED)] if scripted else ["-m", "harness.controller"]
        program += ["--run-dir", "{dir}", "--bind", "{bind}", "--ready-fd", "{fd}"]
        controller = Controller(run_dir, bind=bind, program=program, job=Job(**settings))
        made.append(controller)
        if start:
            assert "address" in controller.start()
        return controller

    yield make
    for controller in made:
        controller.end()


class Breaker:
    """A TCP relay in front of a controller, whose connections a test can cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> "Breaker":
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Reset every connection, dropping what is under way."""
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            upstream, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        for source, sink in ((reader, up_writer), (upstream, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        sink.transport.abort()


@pytest.fixture
def breaker() -> type[Breaker]:
    return Breaker
