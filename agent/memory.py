"""The memory tier on a node: files that hold the state of its ranks and outlive them, copies kept
for another node, and the way between nodes. It is told what to do by StartWorkers and KeepMemory.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from harness import events as e
from harness import orders as o
from harness.agent import peers
from harness.agent.batches import Batches
from harness.agent.store_host import bind
from harness.agent.workers import Worker
from harness.config import Job
from harness.errors import NodeFailure
from harness.holdings import Generation, MemoryPlan
from harness.wire.waiting import News, until_beat
from harness.worker.memoryfile import MemoryFile, Slot, make

_NEWS_SECONDS = 1.0
"""Between two reports of what is held."""
_LOOK_SECONDS = 0.25
"""After which the files are looked at though no rank has told of anything."""
_AGAIN_SECONDS = 1.0
"""Between two tries to reach the neighbour."""
_COPY_SLOTS = (0, 1)
"""Of a copy: the newest one, and the one before or the one that is coming."""

Files = dict[int, MemoryFile]


class NodeMemory:
    """By rank: the files of this node's own, the copies for others, and, for a while after a
    restart, those of ranks that moved to another node. All methods belong to the event loop."""

    def __init__(
        self,
        job: Job,
        report: Callable[[int, e.Event], None],
        notice: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        folder: Path,
    ) -> None:
        """`report` takes attempt and event, `notice` a line for the user; `spawn` has work done
        beside all else, until the agent ends; `folder` is where ranks leave micro-batches."""
        self._job, self._report, self._notice, self._spawn = job, report, notice, spawn
        self._batches = Batches(folder, spawn)
        self._key = b""
        self._node_rank = -1
        self._attempt = -1
        self._plan = MemoryPlan()
        self._own: Files = {}
        self._copies: Files = {}
        self._leaving: Files = {}
        self._closed_to_gifts = True
        self._news = News()
        self._told: tuple[Generation, ...] = ()
        self._told_at = 0.0
        self._listening: socket.socket | None = None
        self._complained = False

    # --- life ----------------------------------------------------------------------------------

    def open(self, run: str, node_rank: int) -> None:
        """Once the node has its place: be there for other nodes, if there can be any."""
        self._node_rank, self._key = node_rank, peers.secret(run, self._job.token)
        self._batches.open(self._key)
        self._spawn(self._tend())
        if self._job.nnodes + self._job.spares == 1:
            return
        host = _own_address(self._job)
        try:
            if not self._job.token and not host.startswith("127."):
                raise NodeFailure("the run has no token")
            self._listening = bind(host, 0)
        except NodeFailure as failure:
            self._notice(f"harness: no copies of other nodes' memory here: {failure.message}")
            return
        self._listening.setblocking(False)
        self._spawn(self._welcome(self._listening))
        address = f"{f'[{host}]' if ':' in host else host}:{self._listening.getsockname()[1]}"
        self._report(0, e.MemoryServed(node_rank=node_rank, address=address))

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for files in (self._own, self._copies, self._leaving):
            _drop(files, files.keys())

    # --- an attempt ----------------------------------------------------------------------------

    async def begin(self, order: o.StartWorkers) -> None:
        """Get ready for the ranks of `order`: with the memory that they go on from, or empty."""
        plan = order.memory or MemoryPlan()
        self._attempt, self._plan = order.attempt, plan
        self._batches.begin(order)
        ranks = range(order.first_rank, order.first_rank + order.local_world_size)
        before, copies = self._own | self._leaving, self._copies
        wanted = (plan.restore_attempt, plan.restore_step)
        own: Files = {}
        for rank in ranks if plan.restore_step >= 0 else ():
            for files, brought in ((before, False), (copies, True)):
                slot = files[rank].find(*wanted) if rank in files else None
                if slot is not None:
                    own[rank] = file = files.pop(rank)
                    if brought:
                        file.mark_brought(slot.number)
                    break
        for files in (before, copies):
            _drop(files, [rank for rank, file in files.items() if file.find(*wanted) is None])
        for file in (*own.values(), *before.values(), *copies.values()):
            file.keep_only(*wanted)
        self._own, self._leaving = own, before
        if order.memory is not None:
            for rank in ranks:
                if rank not in own and (made := self._make(rank)) is not None:
                    own[rank] = made
        await self._fetch(plan, wanted)
        for file in own.values():
            file.sent, file.neighbour = -1, bool(plan.keeper)
        self._told, self._closed_to_gifts = (), False
        self._news.set()

    def descriptor(self, rank: int) -> int | None:
        """The file of `rank`, for the process that will be it; None when there is none."""
        file = self._own.get(rank)
        return None if file is None else file.descriptor

    def _make(self, rank: int) -> MemoryFile | None:
        try:
            return MemoryFile(make(str(rank)))
        except (OSError, ValueError) as error:
            if not self._complained:
                self._notice(f"harness: ranks of this node stay out of memory: {error}")
            self._complained = True
            return None

    async def _fetch(self, plan: MemoryPlan, wanted: tuple[int, int]) -> None:
        """What of the generation to go on from lies on other nodes."""
        for source in plan.fetch:
            file = self._own.get(source.rank)
            if file is None or file.find(*wanted) is not None:
                continue
            try:
                wire = await peers.connect(source.address, self._key)
                try:
                    await peers.fetch(wire, source.rank, *wanted, file, 0)
                finally:
                    wire.close()
            except peers.PeerLost as lost:
                self._notice(
                    f"harness: the memory of rank {source.rank} could not be had from"
                    f" {source.address}: {lost}"
                )

    def heard(self, worker: Worker, fact: dict[str, Any]) -> bool:
        """Whether what a rank has told is for other nodes: a generation of its own that is whole,
        or a part of a micro-batch."""
        kind = fact.get("type")
        if kind == "MemoryStaged":
            self._news.set()
        elif kind == "BatchLeft":
            self._batches.told(worker.rank, worker.attempt, fact)
        return kind in ("MemoryStaged", "BatchLeft")

    def stopped(self) -> None:
        """No rank lives any more: report all that is held; it stays so until `begin`."""
        self._closed_to_gifts = True
        self.tell()

    # --- what is held --------------------------------------------------------------------------

    def held(self) -> tuple[Generation, ...]:
        """By generation, the newest first."""
        own: dict[tuple[int, int], dict[int, int]] = {}
        copies: dict[tuple[int, int], set[int]] = {}
        for rank, file in (*self._leaving.items(), *self._own.items()):
            for slot in file.whole():
                own.setdefault((slot.attempt, slot.step), {})[rank] = slot.shard
        for rank, file in self._copies.items():
            for slot in file.whole():
                copies.setdefault((slot.attempt, slot.step), set()).add(rank)
        found = []
        for attempt, step in sorted({*own, *copies}, reverse=True):
            shards = dict(sorted(own.get((attempt, step), {}).items()))
            found.append(
                Generation(
                    attempt=attempt,
                    step=step,
                    own=tuple(shards),
                    shards=tuple(f"{shard:016x}" for shard in shards.values()),
                    copies=tuple(sorted(copies.get((attempt, step), ()))),
                )
            )
        return tuple(found)

    def file_of(self, rank: int, attempt: int, step: int) -> tuple[MemoryFile, Slot] | None:
        """Where a generation of `rank` lies on this node."""
        for files in (self._own, self._leaving, self._copies):
            slot = files[rank].find(attempt, step) if rank in files else None
            if slot is not None:
                return files[rank], slot
        return None

    def tell(self) -> None:
        """Report what is held, if that is news."""
        held = self.held()
        if held == self._told:
            return
        self._told, self._told_at = held, time.monotonic()
        self._report(
            self._attempt,
            e.MemoryHeld(node_rank=self._node_rank, attempt=self._attempt, generations=held),
        )

    # --- between nodes -------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Send what is to be sent, and tell what is held, for ever."""
        wire: peers.Wire | None = None
        to, not_before = ("", -1), 0.0
        try:
            while True:
                busy = self._plan.keeper or self._leaving
                await self._news.within(until_beat(_LOOK_SECONDS if busy else _NEWS_SECONDS))
                self._news.clear()
                if wire is not None and to != (self._plan.keeper, self._attempt):
                    wire.close()
                    wire = None
                if self._due() and time.monotonic() >= not_before:
                    to = (self._plan.keeper, self._attempt)
                    try:
                        wire = wire or await peers.connect(self._plan.keeper, self._key)
                        await self._send(wire)
                    except (peers.PeerLost, OSError, ValueError):
                        # The last two: the attempt has ended meanwhile, and its files with it.
                        if wire is not None:
                            wire.close()
                        wire, not_before = None, time.monotonic() + _AGAIN_SECONDS
                if not self._closed_to_gifts:
                    self._let_go()
                    if time.monotonic() - self._told_at >= _NEWS_SECONDS:
                        self.tell()
        finally:
            if wire is not None:
                wire.close()

    def _due(self) -> list[tuple[int, MemoryFile, Slot]]:
        """Generations of this node's ranks that its neighbour is to get."""
        if not self._plan.keeper or self._closed_to_gifts:
            return []
        found = []
        for rank, file in self._own.items():
            slot = next((s for s in file.whole() if s.send), None)
            if slot is not None and slot.attempt == self._attempt and slot.step > file.sent:
                found.append((rank, file, slot))
        return found

    async def _send(self, wire: peers.Wire) -> None:
        attempt = self._attempt
        for rank, file, slot in self._due():
            await peers.give(wire, rank, file, slot)
            if self._attempt == attempt:
                file.sent = slot.step

    def _let_go(self) -> None:
        """What the last attempt left is not needed once this one has something of its own."""
        if not self._leaving and self._copies.keys() <= set(self._plan.keeps):
            return
        newest = [next(iter(file.whole()), None) for file in self._own.values()]
        if all(slot is not None and slot.attempt == self._attempt for slot in newest):
            _drop(self._leaving, self._leaving.keys())
            _drop(self._copies, self._copies.keys() - set(self._plan.keeps))

    async def _welcome(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                end, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)  # out of descriptors: later there may be some
                continue
            self._spawn(
                peers.attend(end, self._key, self._take, self.file_of, self._batches.landed)
            )

    def _take(self, words: dict[str, Any]) -> tuple[MemoryFile, int] | str:
        """The place for a copy that is offered, or why it is not wanted."""
        rank = words.get("rank")
        if self._closed_to_gifts or words.get("attempt") != self._attempt:
            return "no copies are taken now"
        if not isinstance(rank, int) or rank not in self._plan.keeps:
            return f"copies of rank {rank} are not kept here"
        file = self._copies.get(rank) or self._make(rank)
        if file is None:
            return "there is no memory for it"
        self._copies[rank] = file
        newest = next((slot.number for slot in file.whole()), None)
        return file, next(number for number in _COPY_SLOTS if number != newest)


def _drop(files: Files, ranks: Iterable[int]) -> None:
    for rank in list(ranks):
        files.pop(rank).close()


def _own_address(job: Job) -> str:
    """The address of this node that others can reach: on node 0 the one they know anyway, else
    the one from which it reaches node 0."""
    host, _, port = job.controller.rpartition(":")
    host = host.strip("[]")
    if job.node_rank == 0:
        return job.master_addr if host in ("0.0.0.0", "::") else host
    try:
        found = socket.getaddrinfo(host, int(port) or 1, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return "127.0.0.1"
