"""The gRPC face of the controller: Control for agents, Observe for views. It carries messages
between the streams and the `Loop`, and refuses what is no message."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc.aio import Server, ServicerContext

from harness import codec
from harness.controller.agents import Agent, Refused, shutdown_id
from harness.controller.loop import Loop
from harness.controller.watchers import watch
from harness.wire import control_pb2 as pb
from harness.wire import control_pb2_grpc as pb_grpc
from harness.wire.channel import PID_KEY
from harness.wire.server import check_token

log = logging.getLogger("harness.controller")

Context = ServicerContext[Any, Any]


def serve(server: Server, loop: Loop, token: str, closing: asyncio.Event) -> None:
    """Answer calls on `server` from `loop`. `closing` ends the streams of views."""
    add_control: Any = pb_grpc.add_ControlServicer_to_server
    add_observe: Any = pb_grpc.add_ObserveServicer_to_server
    add_control(_Control(loop, token), server)
    add_observe(_Observe(loop, token, closing), server)


class _Control(pb_grpc.ControlServicer):
    def __init__(self, loop: Loop, token: str) -> None:
        self._loop = loop
        self._token = token

    async def Join(self, request: pb.Hello, context: Context) -> None:
        await check_token(context, self._token)
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
            if agent.lost or agent.sent == shutdown_id(agent, self._loop.state):
                return
            await agent.news.wait()
            if stream != agent.join_streams:
                return

    async def Report(self, batches: AsyncIterator[pb.EventBatch], context: Context) -> None:
        await check_token(context, self._token)
        pid = str(dict(context.invocation_metadata() or ()).get(PID_KEY, ""))
        agent: Agent | None = None
        async for batch in batches:
            agent = self._loop.agents.by_source(batch.source)
            if agent is None or str(agent.pid) != pid or agent.lost:
                who = f"{batch.source or 'a nameless source'} with pid {pid or '?'}"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{who} has to join")
                return
            seq = self._loop.take(agent, batch.records)
            await context.write(pb.Ack(source=batch.source, seq=seq))
        if agent is not None:
            self._loop.agents.hung_up(agent, self._loop.state)

    def _run_name(self) -> str:
        return "" if self._loop.state.run is None else self._loop.state.run.run


class _Observe(pb_grpc.ObserveServicer):
    def __init__(self, loop: Loop, token: str, closing: asyncio.Event) -> None:
        self._loop = loop
        self._token = token
        self._closing = closing

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        await check_token(context, self._token)
        batches = watch(self._loop, request.from_index, self._closing)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                await context.write(batch)

    async def Do(self, request: pb.Command, context: Context) -> pb.CommandReply:
        await check_token(context, self._token)
        try:
            command = codec.decode_command(request.body)
        except codec.CodecError as error:
            return pb.CommandReply(accepted=False, why=f"not a command: {error}")
        accepted, why = self._loop.do(command, request.by)
        return pb.CommandReply(accepted=accepted, why=why)
