"""The rendezvous store of one attempt: its socket is bound here, a process of its own serves it."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.agent import processes
from harness.agent.zygote_client import Zygote, ZygoteGone
from harness.errors import NodeFailure
from harness.portholder import held_by
from harness.worker.assignment import start_code

_BACKLOG = 4096


def bind(address: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises NodeFailure with one clear line.

    A loopback address is bound as it is, anything else on all interfaces as torchrun does: other
    nodes may know this one by a name or an address that none of its interfaces has.
    """
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = address == "localhost"
    try:
        if loopback:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=_BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = held_by(port)
            raise NodeFailure(
                f"port {port} on {address} is in use by another program"
                + (f", {holder}" if holder else ""),
                help="free it or choose another --master-port; without one any free port is taken",
            ) from None
        raise NodeFailure(f"cannot listen on {address}:{port}: {error.strerror}") from None


class StoreHost:
    """The process that hosts the store of the newest attempt; at most one at a time."""

    def __init__(self, environ: Mapping[str, str], log: Path) -> None:
        self._environ = environ
        self._log = log
        self.pid = 0
        """0 when there is none; also the id of its session."""

    async def host(self, address: str, port: int, zygote: Zygote | None) -> int:
        """Replace the store by a new one; returns its port. Raises NodeFailure.

        The socket takes connections at once, whoever serves it may come a moment later.
        """
        self.stop(wait=port != 0)
        listening = bind(address, port)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if zygote is not None:
                with contextlib.suppress(ZygoteGone):
                    self.pid = await zygote.fork({"what": "store"}, [log, listening.fileno()])
            if not self.pid:
                self.pid = self._start_fresh(listening, log)
            port = listening.getsockname()[1]
            return port
        finally:
            listening.close()
            os.close(log)

    def _start_fresh(self, listening: socket.socket, log: int) -> int:
        descriptor = listening.fileno()
        code = start_code("store")
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, str(os.getpid()), str(descriptor)],
            env=dict(self._environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[descriptor],
        )
        process.returncode = 0  # collected by pid, like those that the zygote forks
        return process.pid

    async def until_dead(self) -> bool:
        """Wait until the present host is gone; whether it died unasked."""
        pid = self.pid
        pidfd = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        if pid != self.pid:
            return False
        self.pid = 0
        processes.reap(pid)
        return True

    def stop(self, *, wait: bool = True) -> None:
        """Kill it, if there is one; its port is free when it was waited for."""
        pid, self.pid = self.pid, 0
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0 if wait else os.WNOHANG)
