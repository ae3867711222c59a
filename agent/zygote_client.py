"""The agent's side of the zygote: start it, ask it for processes, notice its end."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.agent import processes
from harness.agent.standbys import Standbys
from harness.errors import PlatformError
from harness.worker.assignment import MESSAGE_LIMIT, start_code

_FORK_SECONDS = 30.0


class ZygoteGone(PlatformError):
    """The zygote cannot fork: it refused, or it is dead. The message says why."""


class Zygote:
    """One zygote process. `ready` is a future of the seconds its imports took, or ZygoteGone."""

    def __init__(
        self,
        environ: Mapping[str, str],
        cwd: str,
        log_path: Path,
        on_end: Callable[["Zygote", str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._log_path = log_path
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._standbys = Standbys()
        self.ready: asyncio.Future[float] = self._loop.create_future()
        self.ready.add_done_callback(lambda done: done.exception())
        self.ended = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        with theirs, open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-u",
                    "-c",
                    start_code("zygote"),
                    str(os.getpid()),
                    str(theirs.fileno()),
                ],
                env=dict(environ),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        self._loop.add_reader(ours, self._heard)

    @property
    def pids(self) -> set[int]:
        """Its own and those of the processes that it has forked ahead; also their sessions."""
        return {self.pid} | self._standbys.pids

    async def stand_by(self, count: int) -> None:
        """Fork ahead until `count` processes wait. Raises ZygoteGone."""
        while len(self._standbys.pids) < count and not self.ended:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    pid = await self._fork({"what": "standby"}, [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
            self._standbys.add(pid, ours)

    async def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The pid of a new process that does what `request` asks for. Raises ZygoteGone."""
        await asyncio.shield(self.ready)
        return self._standbys.take(_message(request), descriptors) or await self._fork(
            request, descriptors
        )

    async def _fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        number = next(self._ids)
        data = _message({**request, "id": number})
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            await self._send(data, descriptors)
            return await asyncio.wait_for(answer, _FORK_SECONDS)
        except asyncio.TimeoutError:
            raise ZygoteGone(f"no answer within {_FORK_SECONDS:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        while not self.ended:
            try:
                socket.send_fds(self._control, [data], list(descriptors))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise ZygoteGone(f"it is gone ({error.strerror})") from None
        raise ZygoteGone("it is gone")

    def _heard(self) -> None:
        while True:
            try:
                data = self._control.recv(MESSAGE_LIMIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            message = json.loads(data)
            if "ready" in message:
                self.ready.set_result(message["ready"])
            elif "unfit" in message:
                self._fail(message["unfit"])
            else:
                self._answered(message)

    def _answered(self, message: Mapping[str, Any]) -> None:
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            return
        if "pid" in message:
            answer.set_result(message["pid"])
        else:
            answer.set_exception(ZygoteGone(f"fork failed: {message.get('why')}"))

    def _fail(self, why: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(ZygoteGone(why))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ZygoteGone(why))

    def _end(self) -> None:
        """The control socket has closed: the process has died or is about to."""
        if self.ended:
            return
        self.ended = True
        self._standbys.dismiss()
        self._loop.remove_reader(self._control)
        self._control.close()
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        why = f"it died of {signal.Signals(-status).name}" if status < 0 else f"it left ({status})"
        if status > 0:
            why = f"{why}: {_last_line(self._log_path)}"
        had_failed = self.ready.done() and self.ready.exception() is not None
        if had_failed:
            why = str(self.ready.exception())
        self._fail(why)
        self._on_end(self, why)

    def kill(self) -> None:
        """End it without a word."""
        self._standbys.dismiss()
        if not self.ended:
            self.ended = True
            self._loop.remove_reader(self._control)
            self._control.close()
            self._fail("stopped")
            self._process.kill()
            self._process.wait()
        processes.reap(self.pid)


def _message(request: Mapping[str, Any]) -> bytes:
    data = json.dumps(request).encode()
    if len(data) > MESSAGE_LIMIT:
        raise ZygoteGone(f"arguments and environment of a worker are too long ({len(data)} B)")
    return data


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")
