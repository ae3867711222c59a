"""Orders and records between agents and a real controller, exactly once whatever breaks."""

import asyncio
import os
import signal
from collections import defaultdict
from typing import Any

import pytest

from harness import events as e
from harness.faults import Fault
from harness.orders import Inject, Notify, Order, Shutdown, StopRun
from harness.policy import Policy
from harness.wire import observer
from harness.wire.agent_link import AgentLink

ASK = Inject(fault=Fault(kind="kill", rank=0))
STOP = StopRun(why="enough", signal=2)


async def take_orders(link: AgentLink, into: list[Order]) -> None:
    async for order in link.orders():
        into.append(order)


async def until_seen(address: str, kind: type, count: int = 1, token: str = "") -> list[Any]:
    """The first `count` events of `kind` that the run's journal holds."""
    found: list[Any] = []
    async for _, record in observer.watch(address, 0, token):
        if isinstance(record.event, kind):
            found.append(record.event)
            if len(found) == count:
                return found
    raise AssertionError(f"the run ended after {len(found)} {kind.__name__}")


def assert_no_seq_gaps(records: list[e.Record]) -> None:
    seqs: dict[str, list[int]] = defaultdict(list)
    for record in records:
        seqs[record.stamp.source].append(record.stamp.seq)
    for source, found in seqs.items():
        assert found == list(range(len(found))), source


def texts(orders: list[Order]) -> list[str]:
    return [order.text for order in orders if isinstance(order, Notify)]


def expected(node: int, count: int) -> list[str]:
    return [f"order {n} for node {node}" for n in range(1, count + 1)]


def test_a_run_from_join_to_shutdown(make_controller: Any) -> None:
    controller = make_controller(nnodes=2)

    async def run() -> None:
        links = [controller.link(0, local_world_size=1), controller.link(1, local_world_size=3)]
        orders: list[list[Order]] = [[], []]
        # Events before the join are kept.
        links[1].report(0, e.ZygoteUnused(node_rank=1, why="asked"))
        welcomes = [await link.join() for link in links]
        assert [(w.run, w.node_rank) for w in welcomes] == [("t", 0), ("t", 1)]
        taking = [
            asyncio.create_task(take_orders(x, o)) for x, o in zip(links, orders, strict=True)
        ]
        links[0].report(0, e.PhaseChanged(rank=0, phase="step"))
        assert await links[0].command(ASK, "agent") == (True, "as asked")
        assert await observer.do(controller.address, STOP, "cli", "") == (True, "as asked")
        await asyncio.gather(*taking)
        # Said after the Shutdown, taken all the same.
        links[0].report(0, e.FactsLost(rank=0, count=1))
        await asyncio.gather(*(link.close() for link in links))
        for node, given in enumerate(orders):
            assert texts(given) == expected(node, 2)
            assert given[-1] == Shutdown(exit_code=130, reason="enough")

    asyncio.run(run())
    assert controller.wait() == 0
    records = controller.records()
    assert_no_seq_gaps(records)
    assert isinstance(records[0].event, e.RunStarted)
    assert records[0].event.command == ("train.py", "--lr", "1")
    joined = [r.event for r in records if isinstance(r.event, e.AgentJoined)]
    assert [(j.node_rank, j.host, j.local_world_size) for j in joined] == [
        (0, "host0", 1),
        (1, "host1", 3),
    ]
    assert {type(r.event) for r in records if r.stamp.source == "agent:1"} == {e.ZygoteUnused}
    assert [r.event for r in records if isinstance(r.event, e.FactsLost)]
    asked = [r.event.by for r in records if isinstance(r.event, e.CommandTaken)]
    assert asked == ["agent", "cli"]
    assert controller.stderr() == ""


@pytest.mark.slow
def test_broken_links_lose_and_double_nothing(make_controller: Any, breaker: Any) -> None:
    controller = make_controller()
    rounds, per_round = 8, 40

    async def run() -> None:
        orders: list[Order] = []
        async with breaker(controller.address) as relay:
            link = controller.link(address=relay.address)
            await link.join()
            taking = asyncio.create_task(take_orders(link, orders))
            for number in range(rounds):
                for step in range(per_round):
                    link.report(0, e.CheckpointSaved(rank=0, step=step, path="c", seconds=0.1))
                await observer.do(controller.address, ASK, "test", "")
                if number % 2:  # half of the cuts come with everything under way
                    await until_seen(
                        controller.address, e.CheckpointSaved, per_round * (number + 1)
                    )
                relay.cut()
            await until_seen(controller.address, e.CheckpointSaved, rounds * per_round)
            assert relay.connections >= rounds // 2
            await observer.do(controller.address, STOP, "test", "")
            await taking
            await link.close()
        assert texts(orders) == expected(0, rounds + 1)

    asyncio.run(run())
    assert controller.wait() == 0
    records = controller.records()
    assert_no_seq_gaps(records)
    saved = [r.event.step for r in records if isinstance(r.event, e.CheckpointSaved)]
    assert saved == list(range(per_round)) * rounds
    assert len([r for r in records if isinstance(r.event, e.AgentJoined)]) == 1


def test_a_killed_controller_resumes_where_it_was(make_controller: Any) -> None:
    controller = make_controller(nnodes=2)
    kills, steps = 2, 30

    async def run() -> None:
        links = [controller.link(0), controller.link(1)]
        orders: list[list[Order]] = [[], []]
        await asyncio.gather(*(link.join() for link in links))
        taking = [
            asyncio.create_task(take_orders(x, o)) for x, o in zip(links, orders, strict=True)
        ]
        step = 0
        for _ in range(kills):
            for link in links:
                link.report(0, e.PhaseChanged(rank=0, phase=f"before {step}"))
            await observer.do(controller.address, ASK, "test", "")
            controller.kill()
            for _ in range(steps):
                links[0].report(0, e.CheckpointSaved(rank=0, step=step, path="c", seconds=0.1))
                step += 1
            # A request made while nobody is there waits for the next controller.
            asking = asyncio.create_task(links[1].command(ASK, "agent"))
            address = controller.address
            await asyncio.to_thread(controller.start)
            assert controller.address == address
            assert (await asking)[0]
        await until_seen(controller.address, e.CheckpointSaved, kills * steps)
        await observer.do(controller.address, STOP, "test", "")
        await asyncio.gather(*taking)
        await asyncio.gather(*(link.close() for link in links))
        for node, given in enumerate(orders):
            assert texts(given) == expected(node, 1 + 2 * kills)

    asyncio.run(run())
    assert controller.wait() == 0
    records = controller.records()
    assert_no_seq_gaps(records)
    saved = [r.event.step for r in records if isinstance(r.event, e.CheckpointSaved)]
    assert saved == list(range(kills * steps))
    started = [r.event for r in records if isinstance(r.event, e.ControllerStarted)]
    assert [s.incarnation for s in started] == list(range(kills + 1))
    assert len([r for r in records if isinstance(r.event, e.RunStarted)]) == 1
    assert len([r for r in records if isinstance(r.event, e.AgentJoined)]) == 2
    assert not [r for r in records if isinstance(r.event, e.AgentLost)]


def test_a_torn_journal_is_mended_and_said_aloud(make_controller: Any) -> None:
    controller = make_controller()

    async def run() -> None:
        orders: list[Order] = []
        link = controller.link()
        await link.join()
        taking = asyncio.create_task(take_orders(link, orders))
        link.report(0, e.PhaseChanged(rank=0, phase="step"))
        await until_seen(controller.address, e.PhaseChanged)
        controller.kill()
        with controller.journal.open("ab") as file:
            file.write(b'{"stamp":{"run":"t","att')
        await asyncio.to_thread(controller.start)
        link.report(0, e.PhaseChanged(rank=0, phase="eval"))
        await until_seen(controller.address, e.PhaseChanged, 2)
        await link.command(STOP, "agent")
        await taking
        await link.close()
        assert texts(orders) == expected(0, 1)

    asyncio.run(run())
    assert controller.wait() == 0
    assert_no_seq_gaps(controller.records())
    torn = controller.run_dir / "journal.torn"
    assert torn.read_bytes() == b'{"stamp":{"run":"t","att\n'
    assert controller.stderr().count("\n") == 1
    assert "the last line was torn; its 24 bytes are now in journal.torn" in controller.stderr()


def test_a_stopped_controller_blames_nobody_when_it_goes_on(make_controller: Any) -> None:
    controller = make_controller(policy=Policy(agent_timeout=3.0))

    async def run() -> None:
        orders: list[Order] = []
        link = controller.link()
        await link.join()
        taking = asyncio.create_task(take_orders(link, orders))
        await until_seen(controller.address, e.OrderGiven)
        os.kill(controller.process.pid, signal.SIGSTOP)
        await asyncio.sleep(4.0)  # the time that must not count against the agent
        os.kill(controller.process.pid, signal.SIGCONT)
        assert (await link.command(STOP, "agent"))[0]
        await taking
        await link.close()

    asyncio.run(run())
    assert controller.wait() == 0
    assert not [r for r in controller.records() if isinstance(r.event, e.AgentLost)]
