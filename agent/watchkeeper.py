"""The agent's side of the process that looks at watched checkpoint files (`filewatch`)."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from harness import events as e
from harness.agent import torn
from harness.config import Job
from harness.orders import SetAside, StartWorkers
from harness.worker.assignment import start_code

_SETTLE_SECONDS = 5.0
"""Longest wait for a last look at the files, once all ranks of the node are gone."""


class WatchKeeper:
    """Watches the folders of `job`, if it names any. `report` takes events, `notice` lines for
    people."""

    def __init__(
        self,
        job: Job,
        environ: Mapping[str, str],
        report: Callable[[e.Event], None],
        notice: Callable[[str], None],
    ) -> None:
        self._folders = job.watch_checkpoints
        self._elastic = 0 < job.min_nodes < job.nnodes
        self._environ = environ
        self._report, self._notice = report, notice
        self._node_rank = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._asked = 0
        self._settled: asyncio.Future[None] | None = None
        self._flawed: dict[str, e.CheckpointFlaw] = {}
        """By path."""
        self._told: set[str] = set()
        """All that was ever to be set aside for such a reason."""

    @property
    def pid(self) -> int:
        """0 when there is none; also the id of its session."""
        return 0 if self._process is None else self._process.pid

    def start(self, node_rank: int) -> None:
        self._node_rank = node_rank
        if not self._folders:
            return
        arguments = ["--agent", str(os.getpid()), "--since", str(time.time())]
        arguments += ["--elastic"] if self._elastic else []
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    start_code("filewatch", "agent"),
                    *arguments,
                    *self._folders,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(self._environ),
                start_new_session=True,
            )
        except OSError as error:
            self._notice(f"harness: checkpoint files are not watched: {error}")
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._hear)

    def begin(self, order: StartWorkers) -> None:
        """The ranks of an attempt are about to start."""
        self._say(begin=order.attempt, world_size=order.world_size)

    async def settle(self) -> None:
        """No rank is left: what is not whole now never will be, and is reported before this
        returns, unless that takes too long."""
        if self._process is None:
            return
        self._asked += 1
        self._settled = asyncio.get_running_loop().create_future()
        self._say(settle=self._asked)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._settled, _SETTLE_SECONDS)

    async def set_aside(self, order: SetAside) -> None:
        """Carry out `order`, without what has become whole since it was found bad: on another node
        somebody may have finished it meanwhile."""
        await self.settle()
        bad = {path: flaw for flaw in self._flawed.values() for path in flaw.aside}
        paths = tuple(path for path in order.paths if path not in self._told or path in bad)
        for why in dict.fromkeys(bad[path].why for path in paths if path in bad):
            self._notice(f"harness: {why}")
        order = replace(order, paths=paths)
        self._report(torn.carry_out(order, self._node_rank, self._notice))

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        asyncio.get_running_loop().remove_reader(process.stdout.fileno())
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.stdin.close()

    # --- what is said --------------------------------------------------------------------------

    def _say(self, **words: Any) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # its end is noticed on the other pipe
                self._process.stdin.write(json.dumps(words).encode() + b"\n")
                self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not data:
            self.kill()
            self._release()
            self._notice("harness: the watch of checkpoint files has died; they are not checked")

    def _take(self, said: dict[str, Any]) -> None:
        match said:
            case {"flaw": flaw}:
                event = msgspec.convert({**flaw, "node_rank": self._node_rank}, e.CheckpointFlaw)
                self._flawed[event.path] = event
                self._told.update(event.aside)
                self._report(event)
            case {"mended": path}:
                if self._flawed.pop(path, None) is not None:
                    self._report(
                        e.CheckpointFlaw(node_rank=self._node_rank, kind="mended", path=path)
                    )
            case {"say": text}:
                self._notice(f"harness: {text}")
            case {"settled": number} if number == self._asked:
                self._release()

    def _release(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
