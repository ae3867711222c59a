"""Processes that the zygote has forked ahead and that wait to be told what to be.

Forking from a process that has imported torch takes tens of milliseconds, which a restart of many
ranks would spend one after the other. One that waits costs its page tables and no CPU time.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence

from harness.agent import processes


class Standbys:
    """Those that wait, by pid, each with our end of the socket that it listens to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, socket.socket] = {}

    @property
    def pids(self) -> set[int]:
        """Also the ids of their sessions."""
        return set(self._waiting)

    def add(self, pid: int, ours: socket.socket) -> None:
        """`pid` waits at the other end of `ours`."""
        ours.setblocking(False)
        self._waiting[pid] = ours
        self._loop.add_reader(ours, self._dismiss, pid)  # it says nothing: this is its end

    def take(self, request: bytes, descriptors: Sequence[int]) -> int:
        """Make one of them what `request` asks for; its pid, 0 when there is none left."""
        while self._waiting:
            pid = next(iter(self._waiting))
            ours = self._waiting.pop(pid)
            self._loop.remove_reader(ours)
            with ours, contextlib.suppress(OSError):
                socket.send_fds(ours, [request], list(descriptors))
                return pid
            self._end(pid)
        return 0

    def dismiss(self) -> None:
        """End them all."""
        for pid in list(self._waiting):
            self._dismiss(pid)

    def _dismiss(self, pid: int) -> None:
        ours = self._waiting.pop(pid)
        self._loop.remove_reader(ours)
        ours.close()
        self._end(pid)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        processes.reap(pid)
