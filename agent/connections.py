"""TCP connections between ranks, as the kernel tells of them (sock_diag(7), no privilege needed):
what has moved over them between two looks, and what was sent and nobody acknowledges."""

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.sightings import Flow, Traffic

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_REQUEST_DUMP = 0x301
_INFO = 2  # INET_DIAG_INFO
_ESTABLISHED, _LISTENING = 1 << 1, 1 << 10
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=BBBB2s2s16s16s12x5I")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_SECONDS = 1.0
_FRESH_SECONDS = 0.02
"""Ranks of a node are looked at side by side: one table serves them all."""
MOST_FLOWS = 64

# Places in struct tcp_info (linux/tcp.h), which only ever grows at its end.
_RETRANSMITS, _PROBES, _LAST_ACK = 2, 3, 56
_ACKED, _RECEIVED = 120, 128

_SUSPECT_TRIES = 3
"""RFC 1122, 4.2.3.5: R1, the number of retransmissions that show that a path has failed."""
_SUSPECT_SILENCE_MS = 2000
"""A device that is down, or no route: then the kernel does not count what it sends in vain."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One established socket. `pending` bytes were given to the kernel and are not acknowledged;
    `tries` counts what was sent again, or to probe, since the last acknowledgement."""

    local: Address
    remote: Address
    acked: int
    received: int
    pending: int
    tries: int
    last_ack_ms: int

    @property
    def unanswered(self) -> bool:
        """Sent more than once, and nothing came back; a peer that does not read does answer."""
        if not self.pending or not self.tries:
            return False
        return self.last_ack_ms >= _SUSPECT_SILENCE_MS or self.tries >= _SUSPECT_TRIES


Inode = int
Reading = Mapping[Inode, Connection]


class Rank(Protocol):
    """A worker, as far as it matters here."""

    @property
    def rank(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def store_port(self) -> int: ...
    @property
    def nnodes(self) -> int: ...


class Connections:
    """The connections of a node's `ranks`. Those with the store do not count, nor those to programs
    of this node that are no ranks of it, unless other agents may have theirs here as well."""

    def __init__(self, ranks: Collection[Rank]) -> None:
        self._ranks = ranks
        self._stores = {rank.store_port for rank in ranks}
        self._alone = all(rank.nnodes == 1 for rank in ranks)
        self._at = -1.0
        self._table: dict[Inode, Connection] | None = None
        self._owners: dict[Inode, int] = {}
        self._ends: dict[tuple[Address, Address], Inode] = {}
        self._reading: asyncio.Future[None] | None = None

    async def read(self, rank: int) -> Reading | None:
        """Those of `rank` now; None where the kernel does not tell."""
        await self._refresh()
        if self._table is None:
            return None
        return {
            inode: connection
            for inode, connection in self._table.items()
            if self._owners.get(inode) == rank and self._counts(connection)
        }

    async def _refresh(self) -> None:
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if time.monotonic() - self._at < _FRESH_SECONDS:
            return
        self._reading = asyncio.ensure_future(asyncio.to_thread(self._take))
        try:
            await asyncio.shield(self._reading)
        finally:
            self._reading = None

    def _take(self) -> None:
        self._owners = {
            inode: rank.rank for rank in self._ranks if rank.alive for inode in sockets_of(rank.pid)
        }
        self._table = established()
        self._ends = {(c.local, c.remote): inode for inode, c in (self._table or {}).items()}
        self._at = time.monotonic()

    def _counts(self, connection: Connection) -> bool:
        if connection.remote[1] in self._stores:
            return False
        inode = self._ends.get((connection.remote, connection.local))
        return inode is None or inode in self._owners or not self._alone

    def peer(self, connection: Connection) -> int:
        """The rank at the other end, if it is one of this node; -1 otherwise."""
        inode = self._ends.get((connection.remote, connection.local))
        return -1 if inode is None else self._owners.get(inode, -1)

    def between(
        self, first: Reading, second: Reading, seconds: float, most: int = MOST_FLOWS
    ) -> Traffic:
        """What happened between two readings of one rank, by the address at the other end: the
        `most` of them that nobody answers, or over which most has moved."""
        found: dict[tuple[str, str, bool], list[tuple[Connection, int, int]]] = {}
        for inode, now in second.items():
            before = first.get(inode)
            sent = 0 if before is None else now.acked - before.acked
            received = 0 if before is None else now.received - before.received
            still = sent == 0 and received == 0 and before is not None
            dead = still and now.unanswered and before is not None and before.unanswered
            key = (now.local[0], now.remote[0], dead)
            found.setdefault(key, []).append((now, sent, received))
        flows = [
            Flow(
                local=local,
                remote=remote,
                peers=_peers(self.peer(c) for c, _, _ in group),
                connections=len(group),
                sent_bytes=sum(sent for _, sent, _ in group),
                received_bytes=sum(received for _, _, received in group),
                total_bytes=sum(c.acked + c.received for c, _, _ in group),
                pending_bytes=sum(c.pending for c, _, _ in group),
                tries=max(c.tries for c, _, _ in group),
                unanswered=dead,
            )
            for (local, remote, dead), group in found.items()
        ]
        flows.sort(key=lambda f: (not f.unanswered, -f.sent_bytes - f.received_bytes, f.remote))
        return Traffic(seconds=round(seconds, 3), flows=tuple(flows[:most]))


def _peers(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(ranks) - {-1}))


def sockets_of(pid: int) -> list[Inode]:
    """The inodes of a process's sockets; none where it may not be looked into."""
    found: list[Inode] = []
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(int(target[8:-1]))
    return found


def established() -> dict[Inode, Connection] | None:
    """All established TCP connections of this network namespace; None where that is not told."""
    found: dict[Inode, Connection] = {}
    try:
        for message in _sockets(_ESTABLISHED):
            _one(message, found)
    except (OSError, struct.error, ValueError):
        return None
    return found


def listening() -> dict[Inode, Address]:
    """All listening TCP sockets of this network namespace; none where that is not told."""
    found: dict[Inode, Address] = {}
    with contextlib.suppress(OSError, struct.error, ValueError):
        for message in _sockets(_LISTENING):
            family, _, _, _, near, _, local, *_, inode = _MESSAGE.unpack_from(message)
            found[inode] = _address(family, local), int.from_bytes(near, "big")
    return found


def _sockets(states: int) -> Iterator[bytes]:
    """The kernel's messages on sockets in one of `states`. Raises ValueError when it refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), states)
            size = _HEADER.size + len(request)
            kernel.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST_DUMP, family, 0) + request)
            more = True
            while more:
                messages, more = _messages(kernel.recv(1 << 18))
                yield from messages


def _messages(data: bytes) -> tuple[list[bytes], bool]:
    """Those of one answer, and whether more will come. Raises ValueError when it refuses."""
    found: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if kind == _DONE:
            return found, False
        if kind == _ERROR or size < _HEADER.size:
            raise ValueError("refused")
        found.append(data[at + _HEADER.size : at + size])
        at += (size + 3) & ~3
    return found, True


def _one(message: bytes, found: dict[Inode, Connection]) -> None:
    family, _, _, _, near, far, local, remote, *rest = _MESSAGE.unpack_from(message)
    _, _, pending, _, inode = rest
    at = _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            return
        info = message[at + _ATTRIBUTE.size : at + size]
        if kind == _INFO and len(info) >= _RECEIVED + 8:
            found[inode] = Connection(
                local=(_address(family, local), int.from_bytes(near, "big")),
                remote=(_address(family, remote), int.from_bytes(far, "big")),
                acked=_u64(info, _ACKED),
                received=_u64(info, _RECEIVED),
                pending=pending,
                tries=info[_RETRANSMITS] + info[_PROBES],
                last_ack_ms=_u32(info, _LAST_ACK),
            )
            return
        at += (size + 3) & ~3


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(family, raw[:4])
    text = socket.inet_ntop(socket.AF_INET6, raw)
    return text.removeprefix("::ffff:") if "." in text else text


def _u32(info: bytes, at: int) -> int:
    return int.from_bytes(info[at : at + 4], sys.byteorder)


def _u64(info: bytes, at: int) -> int:
    return int.from_bytes(info[at : at + 8], sys.byteorder)
