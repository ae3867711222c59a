"""What strangers, and agents that are broken or hostile, can do to a real controller: nothing that
the others notice."""

import asyncio
import re
from typing import Any

import grpc
import pytest

from harness import codec
from harness import events as e
from harness.controller import service
from harness.controller.limits import MOST_RECORDS, Allowance, Allowances
from harness.orders import StopRun
from harness.sightings import RankArrivals
from harness.wire import control_pb2 as pb
from harness.wire import observer
from harness.wire.channel import PID_KEY, PROTOCOL, call_metadata, open_channel
from harness.wire.control_pb2_grpc import ControlStub, ObserveStub
from harness.wire.server import open_server

BIG = "x" * (8 << 20)


def line(event: e.Event, seq: int) -> bytes:
    stamp = e.Stamp(run="t", attempt=0, source="agent:0", seq=seq, wall_ns=1, mono_ns=1)
    return codec.encode(e.Record(stamp=stamp, event=event))


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    return str(caught.value.details())


def test_a_stranger_can_neither_read_nor_act(make_controller: Any) -> None:
    controller = make_controller(token="s3cret")
    stop = pb.Command(body=codec.encode_command(StopRun(why=BIG, signal=0)), by="me")
    hello = pb.Hello(protocol=PROTOCOL, node_rank=0, local_world_size=1, host=BIG, pid=1)

    async def run() -> None:
        async with open_channel(controller.address) as channel:
            control, observe = ControlStub(channel), ObserveStub(channel)
            for token, why in (("", "no token given"), ("s3cres", "wrong token")):
                shown = call_metadata(token)
                assert await refusal(observe.Do(stop, metadata=shown)) == why
                watching = observe.Watch(pb.WatchRequest(from_index=0), metadata=shown)
                assert await refusal(watching.read()) == why
                assert await refusal(control.Join(hello, metadata=shown).read()) == why
                assert await refusal(control.Report(metadata=shown).read()) == why
        link = controller.link()
        await link.join()
        await link.close()

    asyncio.run(run())
    controller.kill()
    kinds = {type(record.event) for record in controller.records()}
    assert kinds <= {e.RunStarted, e.ControllerStarted, e.AgentJoined, e.OrderGiven}
    told = controller.log() + controller.stderr() + controller.journal.read_text()
    assert "s3cret" not in told


def test_what_cannot_be_true_never_reaches_the_journal(make_controller: Any) -> None:
    controller = make_controller()
    torn = RankArrivals(rank=0, records=(1,), groups=(7,), seqs=(1,), entered_us=(1,))
    lies = [
        e.ArrivalsRead(node_rank=0, base_ns=1, groups=(), ops=(), ranks=(torn,)),
        e.CheckpointSaved(rank=0, step=1, path="/c", seconds=1e308),
    ]

    async def run() -> None:
        async with open_channel(controller.address) as channel:
            control = ControlStub(channel)
            hello = pb.Hello(protocol=PROTOCOL, local_world_size=1 << 30, host="h", pid=1)
            answer = await control.Join(hello).read()
            assert answer.welcome.refused.startswith("it wants to run 1073741824 ranks; ")
            joined = control.Join(pb.Hello(protocol=PROTOCOL, local_world_size=1, host="h", pid=1))
            await joined.read()
            call = control.Report(metadata=call_metadata("", (PID_KEY, "1")))
            good = e.PhaseChanged(rank=0, phase="step")
            lines = [line(event, seq) for seq, event in enumerate([*lies, good])]
            await call.write(pb.EventBatch(source="agent:0", records=lines))
            assert (await call.read()).seq == len(lies)
            too_many = [b""] * (MOST_RECORDS + 1)
            await call.write(pb.EventBatch(source="agent:0", records=too_many))
            with pytest.raises(grpc.aio.AioRpcError, match="a batch of 20001 records"):
                await call.read()
            joined.cancel()

    asyncio.run(run())
    controller.kill()
    said = [r.event for r in controller.records() if r.stamp.source == "agent:0"]
    assert said == [e.PhaseChanged(rank=0, phase="step")]
    assert "left out a ArrivalsRead of agent:0" in controller.log()


def test_requests_are_bounded_in_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "COMMANDS_PER_SECOND", 0.0)
    monkeypatch.setattr(service, "COMMANDS_AT_ONCE", 3.0)
    nobody: Any = None  # none of these requests comes as far as the run

    async def run() -> None:
        server, address = open_server("127.0.0.1:0", "")
        service.serve(server, nobody, asyncio.Event())
        await server.start()
        big = await observer.do(address, StopRun(why=BIG, signal=0), "t", "")
        async with open_channel(address) as channel:
            do = ObserveStub(channel).Do
            replies = [(await do(pb.Command(body=b"?"))).why for _ in range(3)]
        await server.stop(None)
        assert not big[0]
        assert re.fullmatch(r"a request of 83\d+ bytes, 65536 at most", big[1])
        assert [why.partition(":")[0] for why in replies] == [
            "not a command",
            "not a command",
            "too many requests, try again in a second",
        ]

    asyncio.run(run())


def test_an_allowance_is_paid_over_time() -> None:
    now = [0.0]
    one = Allowance(10.0, 100.0, lambda: now[0])
    assert one.spend(100.0) == 0.0
    assert one.spend(50.0) == 5.0
    now[0] = 5.0
    assert not one.can_spend(1.0)
    now[0] = 100.0
    assert one.can_spend(100.0)
    assert not one.can_spend(1.0)


def test_an_unused_name_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.controller.limits._MOST_NAMES", 2)
    names = Allowances(0.0, 1.0)
    assert names.can_spend("a")
    assert names.can_spend("b")
    assert not names.can_spend("b")
    assert names.can_spend("c")
    assert names.can_spend("a")  # forgotten meanwhile
