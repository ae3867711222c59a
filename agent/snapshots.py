"""The last flight record of a rank that may die without a word: pulled now and then while it lives.

How often follows from what it costs: at most 0.5 % of a core for each rank.
"""

import asyncio
import time

from harness.agent import flight, processes, stacks
from harness.agent.workers import Snapshot, Worker

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
COST_FACTOR = 200.0
_PATIENCE_SECONDS = 2.0


async def keep(worker: Worker) -> None:
    """Keep `worker.snapshot` fresh until the worker has ended."""
    pause = SHORTEST_SECONDS
    while worker.alive:
        await asyncio.wait({worker.ended}, timeout=pause)
        stat = processes.read_stat(worker.pid) if worker.alive else None
        if stat is None or stat.state in stacks.FROZEN:
            continue
        began = time.monotonic()
        try:
            data = await flight.ask(worker.files.server, "fr_trace_json", _PATIENCE_SECONDS)
        except flight.Unanswered:
            continue
        # What passed on the clock is no less than what it cost the rank and us.
        worker.snapshot = Snapshot(at=began, data=flight.newest_entries(data))
        cost = time.monotonic() - began
        pause = min(max(SHORTEST_SECONDS, COST_FACTOR * cost), LONGEST_SECONDS)
