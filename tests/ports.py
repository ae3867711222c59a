"""Ports that are bound later, by another process, and that nobody else is given until then."""

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535
_draw = random.SystemRandom()


def free_port() -> int:
    """A port of loopback that is free now, and none that the kernel gives to whoever asks for any:
    between its choice and its use all kinds of connections are made on a busy machine."""
    first, last = map(int, _GIVEN.read_text().split())
    kept = [port for port in range(_LOWEST, _HIGHEST + 1) if not first <= port <= last]
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _draw.choice(kept) if kept else 0))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
