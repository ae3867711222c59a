"""Who takes part: admission of agents, which records and orders each has, who has fallen silent.

Rebuilt from the journal by `note`, so that a restarted controller knows what its predecessor knew.
It judges peers, not workers; what a lost node means is decided elsewhere.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harness import events as e
from harness.controller.limits import hello_flaw
from harness.orders import Shutdown
from harness.state import RunState
from harness.wire import control_pb2 as pb
from harness.wire.channel import PROTOCOL, nnodes_text


class Refused(Exception):
    """Why an agent may not take part, for its user to read."""


@dataclass(slots=True, kw_only=True)
class Agent:
    """One agent process, from its join until it is lost. Another process is another Agent."""

    node_rank: int
    host: str
    pid: int
    base: int
    """Orders given to the node before this process joined: not for it."""
    last_seq: int = -1
    """Highest seq of its records in the journal."""
    silence: float = 0.0
    """Seconds since anything was heard of it."""
    lost_why: str = ""
    join_streams: int = 0
    """Join streams opened so far; only the newest carries orders."""
    linked: bool = False
    sent: int = 0
    """Id of the last order handed to its stream."""
    told_at: float = 0.0
    """When that was, by the monotonic clock."""
    left: bool = False
    """It has taken its Shutdown and hung up."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def source(self) -> str:
        return f"agent:{self.node_rank}"

    @property
    def lost(self) -> bool:
        return bool(self.lost_why)

    def is_process(self, hello: pb.Hello) -> bool:
        return (self.host, self.pid) == (hello.host, hello.pid)


class Agents:
    """All agents of a run, by node rank."""

    def __init__(self) -> None:
        self._agents: dict[int, Agent] = {}
        self._departure = asyncio.Event()

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def note(self, record: e.Record, state: RunState) -> None:
        """Take in a record that was just folded into `state`."""
        match record.event:
            case e.AgentJoined() as joined:
                self._agents[joined.node_rank] = Agent(
                    node_rank=joined.node_rank,
                    host=joined.host,
                    pid=joined.pid,
                    base=len(state.orders.get(joined.node_rank, ())),
                )
            case e.AgentLost() as lost if lost.node_rank in self._agents:
                agent = self._agents[lost.node_rank]
                agent.lost_why = lost.why or "lost"
                agent.news.set()
                self._departure.set()
            case e.OrderGiven() as given if given.node_rank in self._agents:
                self._agents[given.node_rank].news.set()
        agent_of_record = self.by_source(record.stamp.source)
        if agent_of_record is not None:
            agent_of_record.last_seq = max(agent_of_record.last_seq, record.stamp.seq)

    def by_source(self, source: str) -> Agent | None:
        kind, _, rank = source.partition(":")
        if kind != "agent" or not rank.isdecimal():
            return None
        return self._agents.get(int(rank))

    def rejoining(self, hello: pb.Hello, state: RunState) -> Agent | None:
        """The agent that is back after a break of its link; None for a process not seen before.

        Raises Refused.
        """
        if wrong := hello_flaw(hello):
            raise Refused(wrong)
        if hello.protocol != PROTOCOL:
            raise Refused(
                f"it speaks protocol {hello.protocol}, the controller {PROTOCOL}: "
                "use the same version of Harness on all nodes"
            )
        assert state.run is not None
        run = state.run.run
        if hello.run and hello.run != run:
            raise Refused(f"it belongs to run {hello.run}, here runs {run}")
        known = self._agents.get(hello.node_rank)
        if hello.run:
            if known is None or not known.is_process(hello):
                raise Refused(f"run {run} knows no such agent of node {hello.node_rank}")
            if known.lost:
                raise Refused(known.lost_why)
            if hello.last_order > len(state.orders.get(known.node_rank, ())):
                raise Refused("the journal has lost orders that this agent carried out")
            return known
        if hello.node_rank < 0:
            known = next((a for a in self if a.is_process(hello) and not a.lost), None)
        # A welcome that never arrived: the process asks again, and has said nothing yet.
        if known and known.is_process(hello) and known.last_seq < 0 and not known.lost:
            return known
        return None

    def place(self, hello: pb.Hello, state: RunState) -> tuple[int, Agent | None]:
        """Node rank for a new agent process, and the lost process whose place it takes, if any.

        Raises Refused.
        """
        assert state.run is not None
        nnodes, spares = state.run.nnodes, state.run.spares
        options = f"--nnodes {nnodes}" + (f" --spares {spares}" if spares else "")
        if state.ended is not None:
            raise Refused(f"run {state.run.run} has ended: {state.ended.reason}")
        given, wanted = hello.nnodes, nnodes_text(state.run.min_nodes, nnodes)
        if given and given != wanted:
            raise Refused(
                f"it was started with --nnodes {given}, the run with --nnodes {wanted}: "
                "all nodes have to be given the same"
            )
        if hello.local_world_size < 1:
            raise Refused(f"it wants to run {hello.local_world_size} ranks; at least 1 is needed")
        seats = nnodes + spares
        if hello.node_rank >= seats:
            raise Refused(f"node rank {hello.node_rank} is not in 0..{seats - 1} ({options})")
        rank = hello.node_rank
        if rank < 0:
            rank = self._free_rank(seats + self._left_out(state), options)
        before = self._agents.get(rank)
        if before is not None and not before.lost and before.linked:
            raise Refused(
                f"node rank {rank} is taken by the agent with pid {before.pid} on {before.host}"
            )
        return rank, before if before is not None and not before.lost else None

    def sweep(
        self, elapsed: float, timeout: float, starved: Callable[[Agent], float] = lambda agent: 0.0
    ) -> list[Agent]:
        """Let `elapsed` seconds pass; the agents now silent for longer than `timeout`. Of how much
        of it an agent got no CPU to speak with says `starved`."""
        silent: list[Agent] = []
        for agent in self._agents.values():
            if agent.lost or agent.left:
                continue
            agent.silence += max(0.0, elapsed - starved(agent))
            if agent.silence > timeout:
                silent.append(agent)
        return silent

    def hung_up(self, agent: Agent, state: RunState) -> None:
        """`agent` has ended its Report stream; after its Shutdown that is its farewell."""
        last = shutdown_id(agent, state)
        if last is not None and agent.sent >= last:
            agent.left = True
            self._departure.set()

    async def all_departed(self) -> None:
        """Wait until every agent has left or is lost."""
        while not all(agent.left or agent.lost for agent in self._agents.values()):
            self._departure.clear()
            await self._departure.wait()

    def _left_out(self, state: RunState) -> int:
        """How many nodes are here that take no part because of their hosts: they keep no seat from
        others."""
        taking_part = {0} if state.attempt is None else {0, *state.attempt.nodes}
        return sum(
            agent.host in state.struck_out and not agent.lost and rank not in taking_part
            for rank, agent in self._agents.items()
        )

    def _free_rank(self, nnodes: int, options: str) -> int:
        """The lowest free rank; never 0, which is the head's own (its agent asks for it)."""
        for rank in range(1, nnodes):
            if rank not in self._agents or self._agents[rank].lost:
                return rank
        raise Refused(f"all {nnodes} nodes have joined ({options})")


def shutdown_id(agent: Agent, state: RunState) -> int | None:
    """Id of the Shutdown that was ordered to `agent`, or None."""
    orders = state.orders.get(agent.node_rank, [])
    if len(orders) > agent.base and isinstance(orders[-1], Shutdown):
        return len(orders)
    return None
