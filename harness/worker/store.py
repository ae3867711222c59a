"""Hosts the rendezvous store of one attempt, outside the ranks, on a socket the agent has bound."""

import os
import signal
import socket
import sys
from datetime import timedelta

from harness.worker import process


def main() -> None:
    """Entry of a fresh process. `argv`: pid of the agent, descriptor of the listening socket."""
    agent, listening = (int(word) for word in sys.argv[1:3])
    if process.bind_to_parent(agent):
        host(listening)


def host(listening: int) -> None:
    """Serve until killed. `listening` is the descriptor of a bound and listening TCP socket."""
    from torch._C._distributed_c10d import TCPStore

    with socket.socket(fileno=os.dup(listening)) as bound:
        address, port = bound.getsockname()[:2]
    any_address = address in ("0.0.0.0", "::", "")
    store = TCPStore(
        "localhost" if any_address else address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listening,
    )
    while store is not None:
        signal.pause()
