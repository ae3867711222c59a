"""What the controller does by the clock: notice silent agents, make the journal durable."""

import asyncio
import logging
import socket
import time
from pathlib import Path

from harness.controller.agents import Agent
from harness.controller.loop import Loop
from harness.processes import Turns, starved, turns_of_all
from harness.wire.channel import HEARTBEAT

log = logging.getLogger("harness.controller")

_SWEEP = 0.25
_DURABLE = 1.0


async def notice_silence(loop: Loop) -> None:
    """Lose agents of which nothing was heard for the policy's `agent_timeout`.

    A late sweep counts as one on time: when this process was stopped or starved, its agents were
    not silent, it was deaf. Nor was an agent silent that got no CPU to speak with, where that is
    seen: on this machine.
    """
    last, neighbours = time.monotonic(), Neighbours()
    while loop.state.ended is None:
        await asyncio.sleep(_SWEEP)
        now = time.monotonic()
        elapsed, last = min(now - last, 2 * _SWEEP), now
        if loop.state.run is None:
            continue
        timeout = max(loop.state.run.policy.agent_timeout, 2 * HEARTBEAT)
        for agent in loop.agents.sweep(elapsed, timeout, neighbours.starved):
            how = "was silent" if agent.linked else "was disconnected"
            loop.lose(agent.node_rank, f"its agent {how} for {timeout:g} s")
    await asyncio.Event().wait()


class Neighbours:
    """Agents on this machine, as the kernel sees them. A pid of another machine, or of a container
    with the same name, belongs to something else here or to nothing."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._seen: dict[int, dict[int, Turns]] = {}

    def starved(self, agent: Agent) -> float:
        """Seconds since the last call for which a thread of `agent` was ready to run and had no
        CPU: one of them reads and writes what the others wait for."""
        if agent.host != self._host or not _is_agent(agent.pid):
            return 0.0
        now = turns_of_all(agent.pid)
        before = self._seen.get(agent.pid, {})
        self._seen[agent.pid] = now
        return max((starved(before[t], now[t]) for t in now if t in before), default=0.0)


def _is_agent(pid: int) -> bool:
    try:
        return b"harness.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def keep_durable(loop: Loop) -> None:
    """Sync the journal at once after decisions, else every second; never holding up the loop."""
    while True:
        await loop.decided.within(_DURABLE)
        loop.decided.clear()
        try:
            await asyncio.to_thread(loop.writer.sync)
        except OSError as error:
            log.error("cannot sync %s: %s", loop.writer.path, error.strerror)
            await asyncio.sleep(_DURABLE)
