"""Who may join a real controller, who is refused and in which words, who is lost and when."""

import asyncio
import os
import signal
from typing import Any

import grpc
import pytest

from harness import codec, journal
from harness import events as e
from harness.errors import HarnessError, NodeFailure, UsageError
from harness.faults import Fault
from harness.orders import Inject, StopRun
from harness.policy import Policy
from harness.wire import control_pb2 as pb
from harness.wire import observer
from harness.wire.channel import PID_KEY, PROTOCOL, call_metadata, open_channel
from harness.wire.control_pb2_grpc import ControlStub, ObserveStub

ASK = Inject(fault=Fault(kind="kill", rank=0))


def hello(**changes: Any) -> pb.Hello:
    given: dict[str, Any] = {
        "protocol": PROTOCOL,
        "node_rank": 0,
        "local_world_size": 1,
        "host": "host0",
        "pid": 1000,
        **changes,
    }
    return pb.Hello(**given)


async def answer(address: str, message: pb.Hello) -> pb.Welcome:
    """What the controller says to `message`; the stream is hung up again."""
    async with open_channel(address) as channel:
        call = ControlStub(channel).Join(message)
        async for order in call:
            call.cancel()
            return order.welcome
    raise AssertionError("no answer")


async def until(address: str, kind: type) -> Any:
    async for _, record in observer.watch(address, 0, ""):
        if isinstance(record.event, kind):
            return record.event
    raise AssertionError(f"the run ended without {kind.__name__}")


def test_refusals_name_the_reason(make_controller: Any) -> None:
    controller = make_controller(nnodes=2)

    async def run() -> None:
        first = controller.link(0)
        await first.join()

        async def refusal(**changes: Any) -> str:
            return (await answer(controller.address, hello(**changes))).refused

        assert "speaks protocol 9, the controller 1" in await refusal(protocol=9)
        assert await refusal(node_rank=0, pid=7) == (
            "node rank 0 is taken by the agent with pid 1000 on host0"
        )
        assert await refusal(node_rank=2) == "node rank 2 is not in 0..1 (--nnodes 2)"
        assert await refusal(node_rank=1, nnodes="2:3") == (
            "it was started with --nnodes 2:3, the run with --nnodes 2: all nodes have to be given"
            " the same"
        )
        assert "at least 1 is needed" in await refusal(node_rank=1, local_world_size=0)
        assert await refusal(run="other") == "it belongs to run other, here runs t"
        assert "knows no such agent" in await refusal(run="t", node_rank=1)
        assert "has lost orders" in await refusal(run="t", node_rank=0, last_order=5)
        second = controller.link(-1, nnodes="2")
        assert (await second.join()).node_rank == 1
        assert await refusal(node_rank=-1, pid=7) == "all 2 nodes have joined (--nnodes 2)"
        with pytest.raises(UsageError, match="refused: node rank 0 is taken"):
            await controller.link(0, pid=7).join()
        await first.close()
        await second.close()

    asyncio.run(run())


def test_rank_0_is_kept_for_the_head_node(make_controller: Any) -> None:
    controller = make_controller(nnodes=3)

    async def run() -> None:
        places = [
            (await answer(controller.address, hello(node_rank=asked, host="h", pid=pid))).node_rank
            for pid, asked in ((1, -1), (2, 0), (3, -1))
        ]
        assert places == [1, 0, 2]

    asyncio.run(run())


def test_a_token_is_wanted_from_everybody(make_controller: Any) -> None:
    controller = make_controller(token="s3crét\n")

    async def run() -> None:
        for token, complaint in (("", "no token given"), ("guess", "wrong token")):
            with pytest.raises(UsageError, match=complaint):
                await controller.link(token=token).join()
            with pytest.raises(UsageError, match=complaint):
                await observer.do(controller.address, ASK, "cli", token)
            with pytest.raises(UsageError, match=complaint):
                async for _ in observer.watch(controller.address, 0, token):
                    pass
        link = controller.link()
        await link.join()
        assert (await observer.do(controller.address, ASK, "cli", "s3crét\n"))[0]
        await link.close()

    asyncio.run(run())


def test_silent_and_broken_agents_are_lost_after_the_timeout(make_controller: Any) -> None:
    controller = make_controller(nnodes=2, policy=Policy(agent_timeout=0.5))

    async def run() -> None:
        async with open_channel(controller.address) as channel:
            # Connected, but no record and no heartbeat ever comes.
            silent = ControlStub(channel).Join(hello())
            await silent.read()
            lost = await until(controller.address, e.AgentLost)
            assert lost == e.AgentLost(node_rank=0, why="its agent was silent for 1 s")
            # Its stream ends, and it is told why when it comes back.
            while await silent.read() is not grpc.aio.EOF:
                pass
        back = await answer(controller.address, hello(run="t"))
        assert back.refused == "its agent was silent for 1 s"
        # Another process may take the place, and nothing of the old one is asked of it.
        assert (await answer(controller.address, hello(pid=77))).node_rank == 0

    asyncio.run(run())
    controller.kill()
    lost = [
        r.event.why for r in journal.read(controller.journal) if isinstance(r.event, e.AgentLost)
    ]
    assert lost[0] == "its agent was silent for 1 s"


def test_a_lost_agent_learns_it(make_controller: Any) -> None:
    controller = make_controller()

    async def run() -> None:
        link = controller.link()
        await link.join()
        controller.tell('{"type":"agent_gone","node_rank":0,"why":"killed by signal 9"}')
        with pytest.raises(NodeFailure, match="gave this node up: killed by signal 9"):
            async for _ in link.orders():
                pass
        await link.close()

    asyncio.run(run())
    controller.kill()
    lost = [r.event for r in controller.records() if isinstance(r.event, e.AgentLost)]
    assert lost == [e.AgentLost(node_rank=0, why="killed by signal 9")]


def test_the_next_agent_of_a_node_starts_from_nothing(make_controller: Any) -> None:
    controller = make_controller()

    async def run() -> None:
        old = controller.link()
        await old.join()
        orders = old.orders()
        assert (await anext(orders)).text == "order 1 for node 0"
        old.report(0, e.PhaseChanged(rank=0, phase="old"))
        await until(controller.address, e.PhaseChanged)
        controller.tell('{"type":"agent_gone","node_rank":0,"why":"died"}')
        await until(controller.address, e.AgentLost)
        new = controller.link(pid=4242)
        await new.join()
        new.report(0, e.FactsLost(rank=0, count=1))
        await until(controller.address, e.FactsLost)
        # A late word about the old process does not hit the new one.
        controller.tell('{"type":"agent_gone","node_rank":0,"why":"died","pid":1000}')
        await new.command(ASK, "agent")
        assert (await anext(new.orders())).text == "order 2 for node 0"
        await old.close()
        await new.close()

    asyncio.run(run())
    controller.kill()
    records = controller.records()
    said = [(r.stamp.seq, type(r.event)) for r in records if r.stamp.source == "agent:0"]
    assert said == [(0, e.PhaseChanged), (0, e.FactsLost)]
    assert len([r for r in records if isinstance(r.event, e.AgentLost)]) == 1


def test_an_unheard_controller_ends_the_link(make_controller: Any) -> None:
    controller = make_controller()

    async def run() -> None:
        frozen = controller.link(controller_timeout=2.0)
        await frozen.join()
        os.kill(controller.process.pid, signal.SIGSTOP)
        with pytest.raises(NodeFailure, match=r"no word from the controller at .* for 2 s$"):
            async for _ in frozen.orders():
                pass
        await frozen.close()
        controller.kill()
        late = controller.link(controller_timeout=0.5)
        with pytest.raises(NodeFailure, match=r"for 0.5 s: no controller answers .*refused"):
            await late.join()
        await late.close()
        with pytest.raises(HarnessError, match=r"no controller answers at .*refused"):
            await observer.do(controller.address, ASK, "cli", "")

    asyncio.run(run())


def test_malformed_bytes_are_refused_without_harm(make_controller: Any) -> None:
    controller = make_controller()

    def line(event: e.Event, source: str = "agent:0", seq: int = 0) -> bytes:
        stamp = e.Stamp(run="t", attempt=0, source=source, seq=seq, wall_ns=1, mono_ns=1)
        return codec.encode(e.Record(stamp=stamp, event=event))

    async def report(channel: Any, source: str, pid: int, lines: list[bytes]) -> pb.Ack:
        call = ControlStub(channel).Report(metadata=call_metadata("", (PID_KEY, str(pid))))
        await call.write(pb.EventBatch(source=source, records=lines))
        ack: pb.Ack = await call.read()
        call.cancel()
        return ack

    async def run() -> None:
        host, _, port = controller.address.rpartition(":")
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(range(256)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(junk)
            writer.close()
        async with open_channel(controller.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="has to join"):
                await report(channel, "agent:0", 1000, [])
            joined = ControlStub(channel).Join(hello())
            await joined.read()
            with pytest.raises(grpc.aio.AioRpcError, match="has to join"):
                await report(channel, "agent:0", 999, [])
            good = e.PhaseChanged(rank=0, phase="step")
            bad = [
                b"",
                b"\xff\x00garbage",
                b"[" * 100_000,
                line(good).replace(b'"rank":0', b'"rank":"zero"'),
                line(good).replace(b'"type"', b'\n"type"'),
                line(good, source="agent:7"),
                line(good, source="controller"),
                line(good).replace(b'"run":"t"', b'"run":"u"'),
                line(e.RunEnded(outcome="succeeded", exit_code=0, reason="I say so")),
                b'{"stamp":{"run":"t","attempt":0,"source":"agent:0","seq":3,"wall_ns":1,"mono_ns":1}'
                b',"type":"OrderGiven","event":7}',
            ]
            ack = await report(channel, "agent:0", 1000, [*bad, line(good), *bad])
            assert ack.seq == 0
            call = ControlStub(channel).Report(metadata=call_metadata("", (PID_KEY, "1000")))
            for seq in (1, 2, 3):
                await call.write(pb.EventBatch(source="agent:0", records=[line(good, seq=seq)]))
            await call.write(pb.EventBatch(source="agent:0"))  # asks what has come in
            while (await call.read()).seq < 3:
                pass
            call.cancel()
            raw = channel.stream_stream("/harness.wire.Control/Report")
            call = raw(metadata=call_metadata("", (PID_KEY, "1000")))
            await call.write(b"\xff\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
            reply = await ObserveStub(channel).Do(pb.Command(body=b'{"type":["StopRun"]}'))
            assert not reply.accepted
            assert "unknown kind of order or command" in reply.why
            reply = await ObserveStub(channel).Do(pb.Command(body=b"\x00"))
            assert reply.why.startswith("not a command")
        assert (await observer.do(controller.address, StopRun(why="x", signal=0), "t", ""))[0]

    asyncio.run(run())
    assert controller.wait() == 0
    records = controller.records()
    assert [type(r.event) for r in records if r.stamp.source == "agent:0"] == 4 * [e.PhaseChanged]
    assert "Traceback" not in controller.stderr()
