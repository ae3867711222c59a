"""One worker: its process, pulse page, link and files, from launch to exit."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.agent.arrivals import ArrivalLog
from harness.agent.recordlogs import RecordLogs
from harness.setups import Setup
from harness.sightings import ExceptionInHand, Pulse
from harness.worker import link, ownstack
from harness.worker.pulse import PulseReader, PulseReading

ERROR_FILE_LIMIT = 64_000
_ADOPTION_SECONDS = 5.0
_BEAT_NEWS_NS = 1_000_000_000
_shown = attrgetter(*(each.name for each in fields(PulseReading) if each.name != "heartbeat_ns"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The newest entries of a flight record, as JSON, and when they were taken (monotonic)."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFiles:
    """Where the files of one worker lie. All but `log` go with the runtime directory."""

    log: Path
    server: Path
    last_record: Path
    fatal: Path
    error: Path


@dataclass(slots=True, kw_only=True)
class Worker:
    """A launched rank. `ended` resolves when the process is gone and its exit was reported,
    `raised` when it has told of an exception that nobody caught: it is about to end then."""

    rank: int
    local_rank: int
    attempt: int
    pid: int
    pidfd: int
    launched_by: str
    files: WorkerFiles
    page: PulseReader
    logs: RecordLogs
    link_end: socket.socket
    ended: asyncio.Future[None]
    raised: asyncio.Future[None]
    store_port: int = 0
    """Where the store of its attempt listens."""
    nnodes: int = 1
    guest: bool = True
    """Whether our guest is in it; a program started by --no-python has none."""
    told_to_stop: bool = False
    exit_text: str = ""
    """How it ended, once it has."""
    ended_at: float = 0.0
    """When it was seen to be gone (monotonic seconds)."""
    last_reading: PulseReading | None = field(default=None)
    snapshot: Snapshot | None = None
    """Its last periodic flight record, if there was one."""
    written: dict[str, bool] = field(default_factory=dict)
    """Files of its script with a checkpoint's name that it opened for writing last, and whether
    torch.save did so."""
    handling: ExceptionInHand | None = None
    """The exception that its main thread has been handling for a while."""
    arrivals: ArrivalLog = field(default_factory=ArrivalLog)
    listens: tuple[str, ...] = ()
    """Addresses at which other ranks connect to it."""
    listens_since: int = 0
    """How many groups it had made when they were looked up."""
    setup: Setup | None = None
    """What it says that it runs with; digests of the files are still missing."""
    _stack: asyncio.Future[str] | None = None

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def ask_to_stop(self) -> None:
        """SIGTERM, as torchrun would; to the whole session only where a shell may be in between.

        Of a Python program only the main process is asked: its data loaders go with it, and
        would otherwise die under it while it saves what it has. SIGCONT wakes it if it is stopped.
        """
        if self.guest:
            self.send_signal(signal.SIGTERM)
        elif self.alive:
            try:
                os.killpg(self.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):  # it has no session of its own yet
                self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    async def own_stack(self, seconds: float) -> str:
        """Its stacks as it sees them itself; empty when it does not answer within `seconds`."""
        if self._stack is None:
            self._stack = asyncio.get_running_loop().create_future()
            with contextlib.suppress(OSError):
                self.link_end.send(ownstack.ASK)
        asked = self._stack
        either: list[asyncio.Future[Any]] = [asked, self.ended]
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else ""

    def told_stack(self, text: str) -> None:
        """The answer."""
        asked, self._stack = self._stack, None
        if asked is not None:
            asked.set_result(text)

    def changed_pulse(self, *, beats: bool = True) -> Pulse | None:
        """What its page holds, if that is news. A heartbeat alone is news once a second, without
        `beats` never."""
        reading, last = self.page.read(), self.last_reading
        if (
            last is not None
            and not (beats and reading.heartbeat_ns - last.heartbeat_ns >= _BEAT_NEWS_NS)
            and _shown(reading) == _shown(last)
        ):
            return None
        self.last_reading = reading
        return self._pulse(reading)

    def newest_pulse(self) -> Pulse | None:
        """What its page holds, or held when it ended."""
        reading = self.page.read() if self.alive else self.last_reading
        return None if reading is None else self._pulse(reading)

    def _pulse(self, reading: PulseReading) -> Pulse:
        return Pulse(
            rank=self.rank,
            step=reading.step,
            phase=reading.phase,
            heartbeat_ns=reading.heartbeat_ns,
            step_ns=reading.step_ns,
            loss=reading.loss,
            loss_finite=reading.loss_finite,
            tokens=reading.tokens,
            total_steps=reading.total_steps,
            collectives=reading.collectives,
            asked_stop=reading.asked_stop,
        )

    def error_file(self) -> str | None:
        """What `@record` has left, if anything."""
        try:
            with open(self.files.error, encoding="utf-8", errors="replace") as file:
                return file.read(ERROR_FILE_LIMIT) or None
        except OSError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What wait4 said of a process."""

    exit_code: int | None
    signal: int | None
    max_rss_bytes: int
    exited_ns: int

    @property
    def text(self) -> str:
        if self.signal is None:
            return f"exit code {self.exit_code}"
        return f"killed by {signal_name(self.signal)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def watch(
    worker: Worker,
    on_fact: Callable[[Worker, dict[str, Any]], None],
    on_exit: Callable[[Worker, Ending], None],
) -> None:
    """Call back for each fact on the link, and once for the exit, after all facts.

    The exit is noticed through the pidfd as soon as the kernel lets go of the process.
    """
    loop = asyncio.get_running_loop()
    adoption_ends = loop.time() + _ADOPTION_SECONDS

    def hear() -> None:
        facts = link.receive(worker.link_end)
        if facts is None:
            loop.remove_reader(worker.link_end)
        for fact in facts or ():
            on_fact(worker, fact)

    def gone() -> None:
        loop.remove_reader(worker.pidfd)
        exited_ns = time.time_ns()
        try:
            pid, status, usage = os.wait4(worker.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status, usage = 0, 0, None
        if pid == 0 and loop.time() < adoption_ends:
            # Killed before its forker was gone: in a moment it is ours to collect.
            loop.call_later(0.001, gone)
            return
        code = os.waitstatus_to_exitcode(status) if pid else 255
        hear()
        loop.remove_reader(worker.link_end)
        worker.link_end.close()
        on_exit(
            worker,
            Ending(
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                max_rss_bytes=0 if usage is None else usage.ru_maxrss * 1024,
                exited_ns=exited_ns,
            ),
        )
        os.close(worker.pidfd)
        worker.page.close()

    loop.add_reader(worker.link_end, hear)
    loop.add_reader(worker.pidfd, gone)
