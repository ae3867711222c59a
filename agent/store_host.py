"""The rendezvous store of one attempt: its socket is bound here, a process of its own serves it."""

import errno
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from harness.agent import processes
from harness.errors import NodeFailure
from harness.worker.bootstrap import start_code

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
            raise NodeFailure(
                f"port {port} on {address} is in use by another program",
                help="free it or choose another --master-port; without one any free port is taken",
            ) from None
        raise NodeFailure(f"cannot listen on {address}:{port}: {error.strerror}") from None


def start_fresh(listening: socket.socket, environ: Mapping[str, str], log: int) -> int:
    """Host the store in a fresh interpreter; returns its pid."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-c",
            start_code("store"),
            str(os.getpid()),
            str(listening.fileno()),
        ],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[listening.fileno()],
    )
    process.returncode = 0  # watched by pid, like those the zygote forks
    return process.pid


def stop(pid: int) -> None:
    """Kill the host of a finished attempt's store."""
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            processes.reap(pid)
