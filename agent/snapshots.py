"""The last flight record of ranks that may die without a word: pulled now and then while they live.

How often follows from what it costs: at most 0.5 % of a core for each rank. All ranks that are due
are asked at once, from a thread: a turn of the event loop for every byte costs more than the bytes.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from harness.agent import flight, processes, stacks
from harness.agent.workers import Snapshot, Worker
from harness.wire.waiting import until_beat

SHORTEST_SECONDS = 1.0
STEADY_SECONDS = 2.0
"""The shortest pause once a rank is past its first minute."""
_YOUNG_SECONDS = 60.0
LONGEST_SECONDS = 60.0
COST_FACTOR = 200.0
_PATIENCE_SECONDS = 2.0
_OVERLAP = 64
"""Entries that are read once more for arrivals, as the page's count may lag behind."""
_BEATING_NS = 1_500_000_000
_BASE_COST = 1e-3
_BYTE_COST = 5e-8
"""Seconds of CPU to make, send and read a record, and for each of its bytes: about twice what was
measured, 32 ms for the 0.95 MB of 2,000 entries."""


@dataclass(slots=True)
class _Kept:
    """Of one worker. Times are monotonic seconds; `made` and `before` are the numbers of operations
    that it had begun at the last two turns, -1 for none."""

    started: float
    due: float
    made: int = -1
    before: int = -1

    def is_news(self, worker: Worker) -> bool:
        """Whether its record may have changed. What has begun since the last one is news, and once
        more that it has ended. Where the heart does not beat the number may be an old one."""
        reading = worker.page.read()
        earlier, self.before, self.made = self.before, self.made, reading.collectives
        beats = time.monotonic_ns() - reading.heartbeat_ns < _BEATING_NS
        still = earlier == self.before == self.made
        return worker.snapshot is None or not (beats and still)


async def keep(workers: Callable[[], Collection[Worker]]) -> None:
    """Keep `snapshot` of all `workers` fresh, for ever."""
    known: dict[int, _Kept] = {}
    while True:
        await asyncio.sleep(until_beat(SHORTEST_SECONDS))
        now = time.monotonic()
        living = {worker.pid: worker for worker in workers() if worker.guest and worker.alive}
        known = {
            pid: known.get(pid) or _Kept(started=now, due=now + SHORTEST_SECONDS / 2)
            for pid in living
        }
        due = [
            worker
            for pid, worker in living.items()
            if now >= known[pid].due and known[pid].is_news(worker) and not _frozen(worker)
        ]
        if due:
            await _take(due, known)


def _frozen(worker: Worker) -> bool:
    stat = processes.read_stat(worker.pid)
    return stat is None or stat.state in stacks.FROZEN


async def _take(due: Sequence[Worker], known: dict[int, _Kept]) -> None:
    servers = [worker.files.server for worker in due]
    began = time.monotonic()
    answers = await asyncio.to_thread(flight.ask_all, servers, "fr_trace_json", _PATIENCE_SECONDS)
    for worker, (data, seconds) in zip(due, answers, strict=True):
        if not data:
            continue
        kept = known[worker.pid]
        worker.snapshot = Snapshot(at=began, data=flight.newest_entries(data))
        fresh = kept.made - max(kept.before, 0)
        worker.arrivals.note(flight.newest_entries(data, max(fresh, 0) + _OVERLAP))
        # What passed on the clock is no less than what it cost the rank and us, and on a busy
        # machine much more.
        cost = min(seconds, _BASE_COST + _BYTE_COST * len(data))
        shortest = SHORTEST_SECONDS if began - kept.started < _YOUNG_SECONDS else STEADY_SECONDS
        # Less than a turn early is in time: the next turn would be late.
        pause = min(max(shortest, COST_FACTOR * cost), LONGEST_SECONDS)
        kept.due = began + pause - SHORTEST_SECONDS / 2
