"""Views of a real controller: from the start, from the middle, live, slow, across a restart."""

import asyncio
from typing import Any

from harness import events as e
from harness.orders import StopRun
from harness.wire import control_pb2 as pb
from harness.wire import observer
from harness.wire.channel import open_channel
from harness.wire.control_pb2_grpc import ObserveStub

STOP = StopRun(why="enough", signal=2)


async def take_orders(link: Any) -> None:
    async for _ in link.orders():
        pass


async def collect(address: str, from_index: int) -> list[tuple[int, e.Record]]:
    return [item async for item in observer.watch(address, from_index, "")]


def test_all_watchers_see_what_the_journal_holds(make_controller: Any) -> None:
    controller = make_controller()
    count = 3000

    async def run() -> list[list[tuple[int, e.Record]]]:
        early = [asyncio.create_task(collect(controller.address, i)) for i in (0, 2, 2500)]
        link = controller.link()
        await link.join()
        taking = asyncio.create_task(take_orders(link))
        for step in range(count):
            link.report(0, e.CheckpointSaved(rank=0, step=step, path="c", seconds=0.1))
        async for _, record in observer.watch(controller.address, 0, ""):
            if isinstance(record.event, e.CheckpointSaved) and record.event.step == count - 1:
                break
        late = [asyncio.create_task(collect(controller.address, i)) for i in (0, 2500)]
        await link.command(STOP, "agent")
        await taking
        await link.close()
        return list(await asyncio.gather(*early, *late))

    seen = asyncio.run(run())
    assert controller.wait() == 0
    records = list(enumerate(controller.records()))
    assert len(records) > count
    for start, got in zip((0, 2, 2500, 0, 2500), seen, strict=True):
        assert got == records[start:]


def test_a_watcher_that_does_not_read_holds_nobody_up(make_controller: Any) -> None:
    controller = make_controller()
    count, path = 4000, "p" * 2000

    async def run() -> int:
        async with open_channel(controller.address) as channel:
            stuck = ObserveStub(channel).Watch(pb.WatchRequest(from_index=0))
            await stuck.read()
            link = controller.link()
            await link.join()
            taking = asyncio.create_task(take_orders(link))
            for step in range(count):  # 8 MB, far more than flow control lets through unread
                link.report(0, e.CheckpointSaved(rank=0, step=step, path=path, seconds=0.1))
            async for _, record in observer.watch(controller.address, 0, ""):
                if isinstance(record.event, e.CheckpointSaved) and record.event.step == count - 1:
                    break
            got = 0
            last = -1
            while got < count:  # and nothing is missing when it reads again
                batch = await stuck.read()
                assert batch.first_index > last
                last = batch.first_index
                got += sum(b"CheckpointSaved" in line for line in batch.records)
            await link.command(STOP, "agent")
            await taking
            await link.close()
            return got

    assert asyncio.run(run()) == count
    assert controller.wait() == 0


def test_a_watcher_outlives_the_controller(make_controller: Any) -> None:
    controller = make_controller()

    async def run() -> list[tuple[int, e.Record]]:
        link = controller.link()
        await link.join()
        taking = asyncio.create_task(take_orders(link))
        seen: list[tuple[int, e.Record]] = []
        async for item in observer.watch(controller.address, 0, ""):
            seen.append(item)
            match item[1].event:
                case e.OrderGiven() if len(seen) < 6:
                    controller.kill()
                    await asyncio.to_thread(controller.start)
                case e.ControllerStarted(incarnation=1):
                    await link.command(STOP, "agent")
        await taking
        await link.close()
        return seen

    seen = asyncio.run(run())
    assert controller.wait() == 0
    assert seen == list(enumerate(controller.records()))
