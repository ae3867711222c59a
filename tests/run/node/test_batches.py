"""Micro-batches on their way between agents, over real sockets on loopback."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import orders as o
from harness.agent import peers
from harness.agent.batches import Batches
from harness.worker.audits import exchange

KEY = peers.secret("run", "token")
LARGE = torch.arange(400_000)  # several chunks
PARAMETERS = 3


def order(first_rank: int, *neighbours: o.Neighbour, attempt: int = 0) -> o.StartWorkers:
    return o.StartWorkers(
        attempt=attempt, first_rank=first_rank, local_world_size=1, world_size=2,
        node_rank=first_rank, nnodes=2, master_addr="", master_port=0, max_restarts=0,
        neighbours=neighbours,
    )  # fmt: skip


class Two:
    """The agents of ranks 0 and 1; what rank 0 leaves goes to the second one."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "here", folder / "there"]
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.tasks: list[asyncio.Task[None]] = []
        self.here, self.there = [Batches(path, self.spawn) for path in self.folders]
        for each, path in zip((self.here, self.there), self.folders, strict=True):
            path.mkdir()
            each.open(KEY)
        self.begin(0)

    def begin(self, attempt: int) -> None:
        there = o.Neighbour(first_rank=1, size=1, address=self.address)
        self.here.begin(order(0, there, attempt=attempt))
        self.there.begin(order(1, attempt=attempt))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def serve(self, landed: peers.Landed | None = None) -> None:
        while True:
            end, _ = await asyncio.get_running_loop().sock_accept(self.listening)
            taking = landed or self.there.landed
            self.spawn(peers.attend(end, KEY, lambda _: "", lambda *_: None, taking))

    def run(self, act: Callable[[], Coroutine[Any, Any, None]], **how: Any) -> None:
        async def both() -> None:
            self.spawn(self.serve(**how))
            try:
                await asyncio.wait_for(act(), 30)
            finally:
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)

        with self.listening:
            asyncio.run(both())

    def writer(self, number: int) -> exchange.BatchWriter:
        path = exchange.path_of(str(self.folders[0]), 0, 0, number)
        return exchange.BatchWriter(path, number, PARAMETERS)

    def tell(self, number: int, attempt: int = 0) -> None:
        self.here.told(0, attempt, {"type": "BatchLeft", "number": number, "reader": 1})

    def found(self, number: int) -> exchange.Content | None:
        path = exchange.path_of(str(self.folders[1]), 0, 0, number)
        return exchange.read(path, number, PARAMETERS, whole=True)

    async def comes(self, number: int) -> exchange.Content:
        while (found := self.found(number)) is None:
            await asyncio.sleep(0.005)
        return found


def write(two: Two, number: int, value: Any) -> exchange.BatchWriter:
    """All of a batch but its last digest."""
    writer = two.writer(number)
    writer.piece({"leaves": [value], "form": "*"})
    two.tell(number)
    writer.piece({"gradients": {0: LARGE}})
    two.tell(number)
    writer.digest(0, number)
    return writer


def finish(two: Two, number: int, writer: exchange.BatchWriter) -> None:
    writer.digest(2, 1 << 63)
    writer.complete()
    two.tell(number)
    writer.close(valid=True)


def test_a_batch_arrives_as_it_was_left(tmp_path: Path) -> None:
    two = Two(tmp_path)

    async def act() -> None:
        for number in (7, 8, 9):
            finish(two, number, write(two, number, number))
            content, digests = await two.comes(number)
            assert content["leaves"] == [number]
            assert torch.equal(content["gradients"][0], LARGE)
            assert digests == [number, None, 1 << 63]

    two.run(act)


def test_what_is_not_complete_does_not_count_and_makes_room_for_the_next(tmp_path: Path) -> None:
    two = Two(tmp_path)

    async def act() -> None:
        write(two, 3, "never finished").close(valid=False)
        finish(two, 5, write(two, 5, "next"))  # into the same file
        assert (await two.comes(5))[0]["leaves"] == ["next"]
        assert two.found(3) is None

    two.run(act)


def test_an_agent_that_takes_nothing_holds_nobody_up(tmp_path: Path) -> None:
    """Its socket fills up; what is told meanwhile costs a rank nothing, and only the newest batch
    of a rank is kept in mind."""
    two = Two(tmp_path)
    asked: list[int] = []

    async def act() -> None:
        for number in range(1, 40):
            finish(two, number, write(two, number, number))
            await asyncio.sleep(0)
        while not asked:
            await asyncio.sleep(0.005)
        (way,) = two.here._ways.values()
        assert [left.number for left in way.left.values()] in ([39], [])

    def landed(words: dict[str, Any], chunk: bytes) -> None:
        asked.append(words["number"])

    two.run(act, landed=landed)


def test_an_agent_that_vanishes_ends_nothing(tmp_path: Path) -> None:
    two = Two(tmp_path)

    def landed(words: dict[str, Any], chunk: bytes) -> None:
        raise peers.PeerLost("killed")  # the connection breaks in the middle of a batch

    async def act() -> None:
        finish(two, 1, write(two, 1, 1))
        (way,) = two.here._ways.values()
        while way.not_before == 0:
            await asyncio.sleep(0.005)
            way.news.set()
            two.tell(1)
        assert not way.left
        assert not any(task.done() and task.exception() for task in two.tasks)

    two.run(act, landed=landed)


def test_what_nobody_asked_for_is_not_kept(tmp_path: Path) -> None:
    two = Two(tmp_path)
    good = {"rank": 0, "reader": 1, "attempt": 0, "number": 4, "at": 0}
    for change in (
        {"rank": 1},
        {"reader": 0},
        {"attempt": 1},
        {"rank": -1},
        {"number": "4"},
        {"at": exchange.MOST_FILE_BYTES},
        {"at": None},
    ):
        two.there.landed({**good, **change}, b"x")
    assert os.listdir(two.folders[1]) == []
    two.there.landed(good, b"x")
    for rank in range(2, 40):
        two.there.landed({**good, "rank": rank}, b"x")
    assert len(os.listdir(two.folders[1])) == 4
    two.begin(1)
    assert os.listdir(two.folders[1]) == []
    two.listening.close()


@pytest.mark.parametrize("size", [0, -1, peers.CHUNK + 1, None])
def test_parts_that_cannot_be_end_the_connection(tmp_path: Path, size: Any) -> None:
    two = Two(tmp_path)

    async def act() -> None:
        wire = await peers.connect(two.address, KEY)
        await wire.say(do="part", bytes=size)
        with pytest.raises(peers.PeerLost):
            await wire.hear()
        wire.close()

    two.run(act)


def test_a_word_of_another_attempt_or_rank_is_nothing(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.tell(1, attempt=5)
    two.here.told(0, 0, {"type": "BatchLeft", "number": 1, "reader": 9})
    two.here.told(0, 0, {"type": "BatchLeft", "number": None, "reader": 1})
    assert not two.here._ways
    with contextlib.closing(two.listening):
        pass
