"""Memory files and their way between agents, over real sockets on loopback."""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from harness.agent import peers
from harness.worker.memoryfile import BadMemory, MemoryFile, Slot, encoded, make

KEY = peers.secret("run", "token")
DATA = bytes(range(256)) * 20_000  # several chunks


def filled(data: bytes = DATA, step: int = 7) -> MemoryFile:
    file = MemoryFile(make("test"))
    write(file, 0, data, step)
    return file


def write(file: MemoryFile, number: int, data: bytes, step: int) -> None:
    index = encoded({"step": step})
    file.begin(number)
    file.view(number, len(data) + len(index))[: len(data) + len(index)] = data + index
    file.commit(number, attempt=0, step=step, shard=5, data_bytes=len(data), index_bytes=len(index))


def content(file: MemoryFile, slot: Slot) -> bytes:
    return bytes(file.view(slot.number, slot.bytes)[: slot.data_bytes])


class Keeper:
    """An agent's serving side that takes everything of rank 1 and holds `file` of rank 0."""

    def __init__(self, file: MemoryFile) -> None:
        self.held, self.copy = file, MemoryFile(make("copy"))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.open = True
        self.landed: list[tuple[dict[str, Any], bytes]] = []

    def take(self, words: dict[str, Any]) -> tuple[MemoryFile, int] | str:
        if not self.open:
            return "closed"
        return (self.copy, 1) if words["rank"] == 1 else "not this rank"

    def find(self, rank: int, attempt: int, step: int) -> tuple[MemoryFile, Slot] | None:
        slot = self.held.find(attempt, step) if rank == 0 else None
        return None if slot is None else (self.held, slot)

    def land(self, words: dict[str, Any], chunk: bytes) -> None:
        self.landed.append((words, chunk))

    async def serve(self) -> None:
        while True:
            end, _ = await asyncio.get_running_loop().sock_accept(self.listening)
            await peers.attend(end, KEY, self.take, self.find, self.land)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper(filled())
    yield keeper
    keeper.listening.close()
    keeper.held.close()
    keeper.copy.close()


def talk(keeper: Keeper, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def both() -> None:
        serving = asyncio.ensure_future(keeper.serve())
        try:
            await asyncio.wait_for(act(), 30)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    asyncio.run(both())


def test_a_slot_counts_only_when_it_is_whole() -> None:
    file = filled()
    write(file, 1, b"new", 8)
    assert [slot.step for slot in file.whole()] == [8, 7]
    file.begin(1)
    assert [slot.step for slot in file.whole()] == [7]
    again = MemoryFile(os.dup(file.descriptor))
    file.close()
    assert content(again, again.whole()[0]) == DATA
    again.keep_only(0, 3)
    assert again.whole() == []
    again.close()


def test_an_index_that_was_altered_is_refused() -> None:
    file = filled(b"data")
    slot = file.whole()[0]
    assert file.index(slot) == {"step": 7}
    view = file.view(0, slot.bytes)
    view[slot.bytes - 2] ^= 1
    with pytest.raises(BadMemory, match="checksum"):
        file.index(slot)
    file.close()


def test_what_is_given_and_fetched_arrives_as_it_was(keeper: Keeper) -> None:
    mine = filled(DATA[::-1], step=9)
    brought = MemoryFile(make("brought"))

    async def act() -> None:
        wire = await peers.connect(keeper.address, KEY)
        await peers.give(wire, 1, mine, mine.whole()[0])
        await peers.fetch(wire, 0, 0, 7, brought, 0)
        with pytest.raises(peers.PeerLost, match="not this rank"):
            await peers.give(wire, 2, mine, mine.whole()[0])
        with pytest.raises(peers.PeerLost, match="does not hold"):
            await peers.fetch(wire, 0, 0, 8, brought, 1)
        wire.close()

    talk(keeper, act)
    (copy,), (slot,) = keeper.copy.whole(), brought.whole()
    assert (copy.attempt, copy.step, copy.shard) == (0, 9, 5)
    digest = hashlib.sha256(content(keeper.copy, copy)).digest()
    assert digest == hashlib.sha256(DATA[::-1]).digest()
    assert content(brought, slot) == DATA
    assert slot.brought
    mine.close()
    brought.close()


def test_without_the_token_there_is_nothing_to_be_had(keeper: Keeper) -> None:
    async def act() -> None:
        with pytest.raises(peers.PeerLost):
            await peers.connect(keeper.address, peers.secret("run", "guess"))

    talk(keeper, act)
    assert keeper.copy.whole() == []


def test_a_sender_that_dies_half_way_leaves_no_generation(keeper: Keeper) -> None:
    mine = filled()

    async def act() -> None:
        wire = await peers.connect(keeper.address, KEY)
        await wire.say(do="give", rank=1, **peers.facts(mine.whole()[0]))
        assert "go" in await wire.hear()
        await wire._send(DATA[:1000])
        wire.close()
        later = await peers.connect(keeper.address, KEY)  # served once the first is done with
        later.close()

    talk(keeper, act)
    assert keeper.copy.whole() == []
    mine.close()


def test_what_comes_too_late_does_not_count(keeper: Keeper) -> None:
    mine = filled()

    async def act() -> None:
        wire = await peers.connect(keeper.address, KEY)
        slot = mine.whole()[0]
        await wire.say(do="give", rank=1, **peers.facts(slot))
        assert "go" in await wire.hear()
        keeper.open = False
        await wire.send_slot(mine, slot)
        with pytest.raises(peers.PeerLost):
            await wire.hear()
        wire.close()

    talk(keeper, act)
    assert keeper.copy.whole() == []
    mine.close()


@pytest.mark.parametrize("size", [-1, 1 << 50, "many", None])
def test_sizes_that_cannot_be_are_refused(keeper: Keeper, size: Any) -> None:
    async def act() -> None:
        wire = await peers.connect(keeper.address, KEY)
        await wire.say(do="give", rank=1, attempt=0, step=1, shard=0, data=size, index=1)
        with pytest.raises(peers.PeerLost):
            await wire.hear()
        wire.close()

    talk(keeper, act)
