"""What the controller does by the clock: notice silent agents, make the journal durable."""

import asyncio
import logging
import time

from harness.controller.loop import Loop
from harness.wire.channel import HEARTBEAT
from harness.wire.waiting import set_within

log = logging.getLogger("harness.controller")

_SWEEP = 0.25
_DURABLE = 1.0


async def notice_silence(loop: Loop) -> None:
    """Lose agents of which nothing was heard for the policy's `agent_timeout`.

    A late sweep counts as one on time: when this process was stopped or starved, its agents were
    not silent, it was deaf.
    """
    last = time.monotonic()
    while loop.state.ended is None:
        await asyncio.sleep(_SWEEP)
        now = time.monotonic()
        elapsed, last = min(now - last, 2 * _SWEEP), now
        if loop.state.run is None:
            continue
        timeout = max(loop.state.run.policy.agent_timeout, 2 * HEARTBEAT)
        for agent in loop.agents.sweep(elapsed, timeout):
            how = "was silent" if agent.linked else "was disconnected"
            loop.lose(agent.node_rank, f"its agent {how} for {timeout:g} s")
    await asyncio.Event().wait()


async def keep_durable(loop: Loop) -> None:
    """Sync the journal at once after decisions, else every second; never holding up the loop."""
    while True:
        await set_within(_DURABLE, loop.decided)
        loop.decided.clear()
        try:
            await asyncio.to_thread(loop.writer.sync)
        except OSError as error:
            log.error("cannot sync %s: %s", loop.writer.path, error.strerror)
            await asyncio.sleep(_DURABLE)
