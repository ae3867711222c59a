"""The last flight record of a rank that may die without a word: pulled now and then while it lives.

How often follows from what it costs: at most 0.5 % of a core for each rank.
"""

import asyncio
import time

from harness.agent import flight, processes, stacks
from harness.agent.workers import Snapshot, Worker

SHORTEST_SECONDS = 1.0
STEADY_SECONDS = 2.0
"""The shortest pause once a rank is past its first minute."""
_YOUNG_SECONDS = 60.0
LONGEST_SECONDS = 60.0
COST_FACTOR = 200.0
_PATIENCE_SECONDS = 2.0
_BEATING_NS = 1_500_000_000
_BASE_COST = 1e-3
_BYTE_COST = 5e-8
"""Seconds of CPU to make, send and read a record, and for each of its bytes: about twice what was
measured, 32 ms for the 0.95 MB of 2,000 entries."""


async def keep(worker: Worker) -> None:
    """Keep `worker.snapshot` fresh until the worker has ended."""
    pause, started = SHORTEST_SECONDS, time.monotonic()
    made = before = -1
    while worker.alive:
        await asyncio.wait({worker.ended}, timeout=pause)
        stat = processes.read_stat(worker.pid) if worker.alive else None
        if stat is None or stat.state in stacks.FROZEN:
            continue
        reading = worker.page.read()
        earlier, before, made = before, made, reading.collectives
        # What has begun since the last record is news, and once more that it has ended. Where the
        # heart does not beat the number may be an old one.
        beats = time.monotonic_ns() - reading.heartbeat_ns < _BEATING_NS
        if worker.snapshot is not None and beats and earlier == before == made:
            continue
        began = time.monotonic()
        try:
            data = await flight.ask(worker.files.server, "fr_trace_json", _PATIENCE_SECONDS)
        except flight.Unanswered:
            continue
        worker.snapshot = Snapshot(at=began, data=flight.newest_entries(data))
        fresh = made - before if before >= 0 else made
        worker.arrivals.note(flight.newest_entries(data, max(fresh, 0) + flight.MOST_ENTRIES))
        # What passed on the clock is no less than what it cost the rank and us, and on a busy
        # machine much more.
        cost = min(time.monotonic() - began, _BASE_COST + _BYTE_COST * len(data))
        young = began - started < _YOUNG_SECONDS
        shortest = SHORTEST_SECONDS if young else STEADY_SECONDS
        pause = min(max(shortest, COST_FACTOR * cost), LONGEST_SECONDS)
