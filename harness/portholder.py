"""Ports of this machine: which one is free for another process, and who holds one."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535
_MOST_WORDS = 60


def free_port() -> int:
    """A port of loopback for a process that is yet to bind it: free now, and none that the kernel
    gives to whoever asks for any, as all kinds of connections do on a busy machine meanwhile."""
    try:
        first, last = map(int, _GIVEN.read_text(encoding="ascii").split())
    except OSError:
        first, last = _LOWEST, _HIGHEST  # no such file: not Linux
    kept = [port for port in range(_LOWEST, _HIGHEST + 1) if not first <= port <= last]
    draw = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", draw.choice(kept) if kept else 0))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port


def held_by(port: int) -> str:
    """`held by pid 4711 (python train.py)`; empty when /proc does not tell, as for other users'.

    An orphan is called one: nobody will end it who started it.
    """
    inodes = set(_listening(port))
    if not inodes:
        return ""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and not inodes.isdisjoint(_sockets(entry)):
            orphan = ", an orphan: who started it is gone" if _parent(entry) == 1 else ""
            return f"held by pid {entry} ({_command(entry)}){orphan}"
    return ""


def _listening(port: int) -> Iterator[str]:
    """The inodes of sockets that listen on `port`."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTEN:
                yield fields[9]


def _sockets(pid: str) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # gone, or another user's
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _command(pid: str) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        raw = b""
    text = " ".join(raw.replace(b"\0", b" ").decode(errors="replace").split())
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"


def _parent(pid: str) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
