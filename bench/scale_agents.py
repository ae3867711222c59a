"""Simulated agents for bench/scale.py: the wire is real, the ranks are not.

    python bench/scale_agents.py ADDRESS AGENTS HZ hang|crash

Each agent has a connection of its own, joins, starts its ranks when told to, reports their pulses
HZ times a second, arrivals as seldom as agents do in a world of that size, says that it lives as
AgentLink does, and answers a look with evidence of every rank. Lines on stdin: `break` (a rank
leaves out a collective, or raises and is gone, and all come to wait), `told` (what came of it since
the last `told`, as one JSON line). Ends with its stdin.
"""

import asyncio
import json
import sys
import time
from typing import Any

from scale_world import World
from tui_world import PER_NODE

from harness import codec
from harness import events as e
from harness import orders as o
from harness.agent.arrivals import slower
from harness.policy import Policy
from harness.wire import control_pb2 as pb
from harness.wire.channel import PID_KEY, PROTOCOL, call_metadata, heartbeat_of, open_channel
from harness.wire.control_pb2_grpc import ControlStub
from harness.wire.waiting import set_within

_ARRIVALS_SECONDS = 2.0
_JOINS_AT_A_TIME = 32


class Told:
    """What the agents have seen of the controller."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        """Of messages that were answered, seconds until they were: all up to them is in the journal
        then."""
        self.reports = 0
        self.late = 0
        """Reports that went out more than a period late: this end did not keep up."""

    def take(self) -> dict[str, Any]:
        """All of it, from now on anew."""
        latencies = sorted(self.latencies)
        said = {
            "reports": self.reports,
            "late": self.late,
            "median": latencies[len(latencies) // 2] if latencies else 0.0,
            "p99": latencies[len(latencies) * 99 // 100] if latencies else 0.0,
        }
        self.latencies, self.reports, self.late = [], 0, 0
        return said


class Agent:
    """One of them."""

    def __init__(self, node: int, world: World, period: float, told: Told) -> None:
        self.node, self.world, self.period, self.told = node, world, period, told
        self.source = f"agent:{node}"
        self.seq = -1
        self.heartbeat = heartbeat_of(Policy(pulse_interval=period), world.nodes)
        self.running = asyncio.Event()
        self.sent: dict[int, float] = {}
        self.turn = asyncio.Lock()
        self.said_until = 0.0
        self.asked = 0.0
        """When a message without records was sent, which asks for an answer; 0: none is due."""

    async def live(self, address: str, gate: asyncio.Semaphore) -> None:
        async with open_channel(address) as channel:
            stub: Any = ControlStub(channel)  # type: ignore[no-untyped-call]
            hello = pb.Hello(
                protocol=PROTOCOL, node_rank=self.node, local_world_size=PER_NODE,
                host=f"host-{self.node}", pid=10_000 + self.node,
            )  # fmt: skip
            async with gate:
                orders = stub.Join(hello, metadata=call_metadata(""))
                await anext(aiter(orders))
            metadata = call_metadata("", (PID_KEY, str(hello.pid)))
            self.call = stub.Report(metadata=metadata)
            await asyncio.gather(self._obey(orders), self._report(), self._hear())

    async def crash(self) -> None:
        """A rank of this node raises and ends."""
        await self._send(self.world.crash())

    async def _send(self, events: list[tuple[str, bytes]]) -> None:
        async with self.turn:
            lines = []
            for name, event in events:
                self.seq += 1
                lines.append(self.world.record(self.source, self.seq, name, event))
            if lines:
                self.sent[self.seq] = time.monotonic()
                self.told.reports += 1
            else:
                self.asked = time.monotonic()
            await self.call.write(pb.EventBatch(source=self.source, records=lines))

    async def _hear(self) -> None:
        async for ack in self.call:
            at = self.asked or self.sent.get(ack.seq)
            if at is not None:
                self.told.latencies.append(time.monotonic() - at)
            self.asked = 0.0
            self.sent = {seq: at for seq, at in self.sent.items() if seq > ack.seq}

    async def _report(self) -> None:
        """Pulses and arrivals; a heartbeat in between, where the pause is longer than its own."""
        while not await set_within(self.heartbeat, self.running):
            await self._send([])
        share = self.node / self.world.nodes
        due = time.monotonic() + share * self.period
        every = max(1, round(_ARRIVALS_SECONDS * slower(self.world.size) / self.period))
        turn = self.node
        while True:
            pause = due - time.monotonic()
            if pause > self.heartbeat:
                await asyncio.sleep(self.heartbeat)
                await self._send([])
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() < self.said_until:  # its evidence has said that nothing is new
                due += self.period
                continue
            self.told.late += time.monotonic() - due > self.period
            said = [("PulsesRead", self.world.pulses(self.node))]
            turn += 1
            if turn % every == 0 and not self.world.hung:
                said.append(("ArrivalsRead", self.world.arrivals(self.node, every)))
            await self._send(said)
            due += self.period

    async def _obey(self, orders: Any) -> None:
        async for message in orders:
            order = codec.decode_order(message.body)
            match order:
                case o.HostStore():
                    ready = e.StoreReady(attempt=order.attempt, address="127.0.0.1", port=4000)
                    await self._send([("StoreReady", self.world.encode(ready))])
                case o.StartWorkers():
                    await self._send(self.world.start(self.node))
                    self.running.set()
                case o.CollectEvidence():
                    if order.together:
                        self.said_until = time.monotonic() + order.apart + self.period
                    await asyncio.sleep(order.apart)
                    seen = self.world.evidence(
                        self.node, order.collection, order.most, together=order.together
                    )
                    await self._send(seen)
                case _:
                    pass


async def main() -> None:
    address, agents, hz, harm = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    world, told = World(agents), Told()
    world.prepare(harm)
    gate = asyncio.Semaphore(_JOINS_AT_A_TIME)
    every = [Agent(node, world, 1 / hz, told) for node in range(agents)]
    tasks = [asyncio.create_task(agent.live(address, gate)) for agent in every]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        if line.strip() == b"break":
            world.hang()
            if harm == "crash":
                await every[world.stuck // PER_NODE].crash()
        said = told.take()
        print(json.dumps({**said, "at_ns": time.time_ns()}), flush=True)
        broken = [task.exception() for task in tasks if task.done()]
        if broken:
            print(f"{len(broken)} agents have ended: {broken[0]}", file=sys.stderr, flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
