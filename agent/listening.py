"""Where the ranks of this node can be reached: the addresses by which a broken connection is known.

Gloo names the other end of a connection by the address it listens at. That is looked up while the
rank lives: when connections break, all ends of them may be gone before anybody asks.
"""

import asyncio
import socket
from collections.abc import Iterable

from harness.agent.connections import listening, sockets_of
from harness.agent.workers import Worker

_ANYWHERE = ("0.0.0.0", "::")
_MOST = 64


async def look(workers: Iterable[Worker]) -> None:
    """Look again where a rank has made groups since the last look; each has an address."""
    made = [(worker, worker.logs.groups_made(worker.listens_since)) for worker in workers]
    fresh = [(worker, groups) for worker, groups in made if groups != worker.listens_since]
    if not fresh:
        return
    found = await asyncio.to_thread(_addresses, [worker.pid for worker, _ in fresh])
    for worker, groups in fresh:
        worker.listens, worker.listens_since = found[worker.pid], groups


def _addresses(pids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """By process: `[127.0.0.1]:5553`, as Gloo writes it, which takes the port for a number as it
    stands in network order (seen with torch 2.13)."""
    known = listening()
    return {
        pid: tuple(
            f"[{host}]:{socket.htons(port)}"
            for host, port in (known[inode] for inode in sockets_of(pid) if inode in known)
            if host not in _ANYWHERE
        )[:_MOST]
        for pid in pids
    }
