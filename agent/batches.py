"""Micro-batches on their way to a neighbour on another node, who computes them again.

A rank writes its batch into a file of this node and says when there is more of it; the agent
carries that to the agent of the neighbour, which writes it into a file of the same name. Nobody
waits for it: a batch is dropped as soon as its rank begins another, or when the other agent is
away. Nothing is buffered but one chunk for each way.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from harness import orders as o
from harness.agent import peers
from harness.worker.audits import exchange

_AGAIN_SECONDS = 5.0
"""After a failure, until the same agent is tried again."""
_MOST_OWNERS = 4
"""Ranks of other nodes, for each rank of this one, that leave batches here."""


class _Left:
    """A batch that a rank has begun, and how much of it is there already."""

    def __init__(self, number: int, reader: int) -> None:
        self.number = number
        self.reader = reader
        self.sent = 0


class _Way:
    """To one other agent: the newest batch of each rank that is for a rank there."""

    def __init__(self) -> None:
        self.left: dict[int, _Left] = {}
        self.news = asyncio.Event()
        self.closed = False
        self.not_before = 0.0


class Batches:
    """Of this node's ranks in one attempt. All methods belong to the event loop."""

    def __init__(self, folder: Path, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """`folder` is where ranks leave what is theirs; `spawn` has work done beside all else."""
        self._folder = folder
        self._spawn = spawn
        self._key = b""
        self._attempt = -1
        self._own = range(0)
        self._places: tuple[o.Neighbour, ...] = ()
        self._ways: dict[str, _Way] = {}
        self._owners: set[int] = set()

    def open(self, key: bytes) -> None:
        """`key` is what agents of one run prove to each other."""
        self._key = key

    def begin(self, order: o.StartWorkers) -> None:
        """Forget what was left in the attempt before."""
        for way in self._ways.values():
            way.closed = True
            way.news.set()
        for path in self._folder.glob("a*r*.batch[01]"):
            with contextlib.suppress(OSError):
                path.unlink()
        self._ways, self._owners = {}, set()
        self._attempt, self._places = order.attempt, order.neighbours
        self._own = range(order.first_rank, order.first_rank + order.local_world_size)

    def told(self, rank: int, attempt: int, fact: dict[str, Any]) -> None:
        """`rank` has written more of a batch for a rank of another node."""
        number, reader = fact.get("number"), fact.get("reader")
        if attempt != self._attempt or not isinstance(number, int) or not isinstance(reader, int):
            return
        address = next((p.address for p in self._places if reader in p.ranks), "")
        if not address:
            return
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = _Way()
            self._spawn(self._carry(address, way))
        known = way.left.get(rank)
        if known is None or known.number != number:
            if time.monotonic() < way.not_before:
                return
            way.left[rank] = _Left(number, reader)
        way.news.set()

    # --- to others -----------------------------------------------------------------------------

    async def _carry(self, address: str, way: _Way) -> None:
        wire: peers.Wire | None = None
        try:
            while not way.closed:
                await way.news.wait()
                way.news.clear()
                try:
                    for rank, left in list(way.left.items()):
                        wire = wire or await peers.connect(address, self._key)
                        await self._advance(wire, way, rank, left)
                except (peers.PeerLost, OSError):
                    if wire is not None:
                        wire.close()
                    wire, way.not_before = None, time.monotonic() + _AGAIN_SECONDS
                    way.left.clear()
        finally:
            if wire is not None:
                wire.close()

    async def _advance(self, wire: peers.Wire, way: _Way, rank: int, left: _Left) -> None:
        """Send what has been added; the digests last, with which the batch begins to count."""
        path = exchange.path_of(str(self._folder), self._attempt, rank, left.number)
        words = {
            "rank": rank, "reader": left.reader, "attempt": self._attempt, "number": left.number,
        }  # fmt: skip
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while not way.closed and way.left.get(rank) is left:
                known = exchange.extent(file)
                if known is None or known.number != left.number:
                    break
                at = max(left.sent, known.start)
                last = at >= known.end
                if last and not known.whole:
                    return
                begin, end = (0, known.start) if last else (at, known.end)
                chunk = os.pread(file, min(peers.CHUNK, end - begin), begin)
                now = exchange.extent(file)
                if now is None or now.number != left.number or not chunk:
                    break
                await wire.give_part(chunk, at=begin, first=at == known.start, **words)
                if last:
                    break
                left.sent = begin + len(chunk)
        finally:
            os.close(file)
        if way.left.get(rank) is left:
            del way.left[rank]

    # --- from others ---------------------------------------------------------------------------

    def landed(self, words: dict[str, Any], chunk: bytes) -> None:
        """Keep what has come for a rank of this node, if it is wanted."""
        asked = [words.get(name) for name in ("rank", "reader", "attempt", "number", "at")]
        numbers = [n for n in asked if isinstance(n, int) and 0 <= n < 1 << 63]
        if len(numbers) < len(asked):
            return
        rank, reader, attempt, number, at = numbers
        wanted = attempt == self._attempt and reader in self._own and rank not in self._own
        room = rank in self._owners or len(self._owners) < _MOST_OWNERS * len(self._own)
        if not wanted or not room or at + len(chunk) > exchange.MOST_FILE_BYTES:
            return
        self._owners.add(rank)
        path = exchange.path_of(str(self._folder), attempt, rank, number)
        with contextlib.suppress(OSError):  # no room on the disk: then there is no such batch
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if words.get("first"):
                    os.pwrite(file, exchange.NOTHING, 0)
                os.pwrite(file, chunk, at)
            finally:
                os.close(file)
