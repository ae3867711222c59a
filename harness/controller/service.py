"""The gRPC face of the controller: Control for agents, Observe for views. It carries messages
between the streams and the `Loop`, and refuses what is no message."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc.aio import Server, ServicerContext

from harness import codec
from harness.controller.agents import Agent, Refused, shutdown_id
from harness.controller.limits import (
    BYTES_AT_ONCE,
    BYTES_PER_SECOND,
    COMMANDS_AT_ONCE,
    COMMANDS_PER_SECOND,
    JOINS_AT_ONCE,
    JOINS_PER_SECOND,
    MOST_COMMAND_BYTES,
    MOST_RECORDS,
    MOST_WATCHERS,
    RECORDS_AT_ONCE,
    RECORDS_PER_SECOND,
    SLICE,
    Allowance,
    Allowances,
    host_of,
)
from harness.controller.loop import Loop
from harness.controller.watchers import watch
from harness.wire import control_pb2 as pb
from harness.wire import control_pb2_grpc as pb_grpc
from harness.wire.channel import PID_KEY, ack_due

log = logging.getLogger("harness.controller")

Context = ServicerContext[Any, Any]


def serve(server: Server, loop: Loop, closing: asyncio.Event) -> None:
    """Answer calls on `server` from `loop`. `closing` ends the streams of views."""
    add_control: Any = pb_grpc.add_ControlServicer_to_server
    add_observe: Any = pb_grpc.add_ObserveServicer_to_server
    add_control(_Control(loop), server)
    add_observe(_Observe(loop, closing), server)


class _Control(pb_grpc.ControlServicer):
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._joins = Allowances(JOINS_PER_SECOND, JOINS_AT_ONCE)

    async def Join(self, request: pb.Hello, context: Context) -> None:
        if not self._joins.can_spend(host_of(context.peer())):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many joins, try again later")
        try:
            agent = self._loop.join(request)
        except Refused as refused:
            log.warning("refused an agent, pid %d on %s: %s", request.pid, request.host, refused)
            await context.write(pb.Order(welcome=pb.Welcome(refused=str(refused))))
            return
        agent.join_streams += 1
        agent.linked = True
        agent.news.set()  # an older stream of this agent sees that it is no longer wanted
        stream = agent.join_streams
        how = "again" if request.run else "anew"
        log.info("node %d joined %s: pid %d on %s", agent.node_rank, how, agent.pid, agent.host)
        try:
            welcome = pb.Welcome(run=request.run or self._run_name(), node_rank=agent.node_rank)
            await context.write(pb.Order(welcome=welcome))
            await self._send_orders(agent, stream, request.last_order, context)
        finally:
            if stream == agent.join_streams:
                agent.linked = False

    async def _send_orders(
        self, agent: Agent, stream: int, last_order: int, context: Context
    ) -> None:
        """Orders after `last_order`, until the run is over for this agent or it is replaced."""
        agent.sent = max(last_order, agent.base)
        while True:
            agent.news.clear()
            while agent.sent < len(given := self._loop.state.orders.get(agent.node_rank, ())):
                order = given[agent.sent]
                message = pb.Order(id=agent.sent + 1, body=codec.encode_order(order))
                await context.write(message)
                if stream != agent.join_streams:
                    return
                agent.sent += 1
                agent.told_at = time.monotonic()
            if agent.lost or agent.sent == shutdown_id(agent, self._loop.state):
                return
            await agent.news.wait()
            if stream != agent.join_streams:
                return

    async def Report(self, batches: AsyncIterator[pb.EventBatch], context: Context) -> None:
        pid = str(dict(context.invocation_metadata() or ()).get(PID_KEY, ""))
        agent: Agent | None = None
        records = Allowance(RECORDS_PER_SECOND, RECORDS_AT_ONCE)
        size = Allowance(BYTES_PER_SECOND, BYTES_AT_ONCE)
        acked_at = 0.0
        async for batch in batches:
            agent = self._loop.agents.by_source(batch.source)
            if agent is None or str(agent.pid) != pid or agent.lost:
                who = f"{batch.source or 'a nameless source'} with pid {pid or '?'}"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{who} has to join")
                return
            if len(batch.records) > MOST_RECORDS:
                what = f"a batch of {len(batch.records)} records, {MOST_RECORDS} at most"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, what)
            seq = await self._take(agent, batch.records)
            # What is too much waits in the agent: unread here, it is held back there.
            wait = max(records.spend(len(batch.records)), size.spend(batch.ByteSize()))
            if wait > 0:
                log.warning("%s reports too much; it waits %.1f s", agent.source, wait)
                await asyncio.sleep(wait)
                agent.silence = 0.0
            now = time.monotonic()
            if not batch.records or now >= ack_due(acked_at, agent.told_at, len(self._loop.agents)):
                acked_at = now
                await context.write(pb.Ack(source=batch.source, seq=seq))
        if agent is not None:
            self._loop.agents.hung_up(agent, self._loop.state)

    async def _take(self, agent: Agent, lines: Sequence[bytes]) -> int:
        """Take in a batch, with a turn for all others after every slice of it."""
        seq = self._loop.take(agent, lines[:SLICE])
        for at in range(SLICE, len(lines), SLICE):
            await asyncio.sleep(0)
            if agent.lost:
                break
            seq = self._loop.take(agent, lines[at : at + SLICE])
        return seq

    def _run_name(self) -> str:
        return "" if self._loop.state.run is None else self._loop.state.run.run


class _Observe(pb_grpc.ObserveServicer):
    def __init__(self, loop: Loop, closing: asyncio.Event) -> None:
        self._loop = loop
        self._closing = closing
        self._commands = Allowances(COMMANDS_PER_SECOND, COMMANDS_AT_ONCE)
        self._watchers = 0

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        if self._watchers >= MOST_WATCHERS:
            what = f"{self._watchers} views watch this run already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, what)
        self._watchers += 1
        try:
            batches = watch(self._loop, request.from_index, self._closing)
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    await context.write(batch)
        finally:
            self._watchers -= 1

    async def Do(self, request: pb.Command, context: Context) -> pb.CommandReply:
        if not self._commands.can_spend(host_of(context.peer())):
            return pb.CommandReply(accepted=False, why="too many requests, try again in a second")
        if request.ByteSize() > MOST_COMMAND_BYTES:
            why = f"a request of {request.ByteSize()} bytes, {MOST_COMMAND_BYTES} at most"
            return pb.CommandReply(accepted=False, why=why)
        try:
            command = codec.decode_command(request.body)
        except codec.CodecError as error:
            return pb.CommandReply(accepted=False, why=f"not a command: {error}")
        accepted, why = self._loop.do(command, request.by)
        return pb.CommandReply(accepted=accepted, why=why)
