"""Who holds a port: a real process that listens, and an orphan."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.placement import check_port_free
from harness.portholder import free_port, held_by

LISTEN = """\
import os, socket, sys, time
taken = socket.create_server(("127.0.0.1", 0))
print(taken.getsockname()[1], os.getpid(), flush=True)
os.close(1)
time.sleep(1000)
"""


def test_a_free_port_is_none_that_others_are_given() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    first, last = map(int, given)
    ports = {free_port() for _ in range(20)}
    for port in ports:
        assert not first <= port <= last
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_the_holder_of_a_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert held_by(port) == "", "bound, but nobody listens"
        taken.listen()
        assert held_by(port).startswith(f"held by pid {os.getpid()} (")
        with pytest.raises(UsageError, match=f"held by pid {os.getpid()}"):
            check_port_free("127.0.0.1", port, "--master-port")
    assert held_by(port) == ""


def test_an_orphan_is_called_one() -> None:
    # Whether pid 1 adopts it depends on where the test runs; what is named must be the process.
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys\nsubprocess.Popen({[sys.executable, '-c', LISTEN]!r})",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    port, pid = map(int, done.stdout.split())
    try:
        held = held_by(port)
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        assert held.startswith(f"held by pid {pid} ({sys.executable} -c ")
        assert ("an orphan: who started it is gone" in held) == (parent == 1)
    finally:
        os.kill(pid, signal.SIGKILL)
