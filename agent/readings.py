"""What is read of the ranks all the time, besides their pulses: arrivals and vitals.

Reading vitals takes a tenth of a millisecond a rank; a report goes out only when it has news.
"""

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from harness import events as e
from harness.agent import arrivals, listening, vitals
from harness.agent.setups import Setups
from harness.agent.workers import Worker
from harness.sightings import Vitals
from harness.wire.waiting import until_beat

_SAMPLE_SECONDS = 1.0
_REPORT_SECONDS = 2.0
_YOUNG_SECONDS = 60.0
"""In its first minute an attempt is reported on every second, later every other."""
_PEERS_SECONDS = 30.0
_NEWS_FDS = 2
_NEWS_SHARE = 0.02
_NEWS_BYTES = 2 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")

Report = Callable[[int, e.Event], None]


class Readings:
    """The regular readings of a node's workers. `report` takes an attempt and an event."""

    def __init__(self, live: Callable[[], Iterable[Worker]], report: Report) -> None:
        self._live = live
        self._report = report
        self._said: dict[int, Vitals] = {}
        """By process: what was reported last."""
        self._peers: dict[int, tuple[float, tuple[int, ...]]] = {}
        self._setups = Setups()
        self._world_size = 1
        self._young_until = 0.0

    def begin(self, world_size: int) -> None:
        """An attempt with `world_size` ranks starts."""
        self._world_size = world_size
        self._young_until = time.monotonic() + _YOUNG_SECONDS
        self._said.clear()
        self._setups.forget()
        self._peers.clear()

    async def keep(self, node_rank: int) -> None:
        """Read and report for as long as the agent lives."""
        vitals_due = arrivals_due = 0.0
        while True:
            await asyncio.sleep(until_beat(_SAMPLE_SECONDS))
            now = time.monotonic()
            pause = _SAMPLE_SECONDS / 2 if now < self._young_until else _REPORT_SECONDS
            workers = [worker for worker in self._live() if worker.guest]
            await self._read_setups(node_rank, workers)
            await listening.look(workers)
            if now >= vitals_due and self.vitals(node_rank, workers):
                vitals_due = now + pause
            if now >= arrivals_due and self._arrivals(node_rank, workers):
                arrivals_due = now + pause * arrivals.slower(self._world_size)

    def vitals(self, node_rank: int, workers: Iterable[Worker]) -> bool:
        """Report the vitals that have changed; whether there were any."""
        changed: list[Vitals] = []
        attempt = 0
        for worker in workers:
            seen = _with_progress(worker, read_vitals(worker.rank, worker.pid))
            if seen is not None and _is_news(self._said.get(worker.pid), seen):
                self._said[worker.pid] = seen
                changed.append(seen)
                attempt = worker.attempt
        if changed:
            self._report(
                attempt,
                e.VitalsRead(
                    node_rank=node_rank,
                    vitals=tuple(changed),
                    memory_available_bytes=vitals.memory_available(),
                ),
            )
        return bool(changed)

    async def _read_setups(self, node_rank: int, workers: list[Worker]) -> None:
        """In a thread: the files may lie on a slow or broken file system."""
        fresh = self._setups.unread(workers)
        if not fresh:
            return
        found = await asyncio.to_thread(self._setups.read, node_rank, fresh)
        if found is not None:
            self._report(*found)

    def _arrivals(self, node_rank: int, workers: Iterable[Worker]) -> bool:
        taken, peers, attempt = {}, {}, 0
        for worker in workers:
            taken[worker.rank] = worker.arrivals.take(arrivals.most_entries(self._world_size))
            peers[worker.rank] = self._peers_of(worker)
            attempt = worker.attempt
        event = arrivals.event(node_rank, taken, peers)
        if event is not None:
            self._report(attempt, event)
        return event is not None

    def _peers_of(self, worker: Worker) -> tuple[int, ...]:
        """Whom it has exchanged tensors with, looked up now and then: it takes milliseconds."""
        now = time.monotonic()
        due, known = self._peers.get(worker.pid, (0.0, ()))
        if now >= due and worker.logs.exchanged:
            found = {operation.peer for operation in worker.logs.operations()}
            known = tuple(sorted({*known, *found} - {-1, worker.rank}))
            self._peers[worker.pid] = (now + _PEERS_SECONDS, known)
        return known


def read_vitals(rank: int, pid: int) -> Vitals | None:
    """None when the process is gone or not ours to look into."""
    try:
        folder = f"/proc/{pid}/fd"
        fds = os.stat(folder).st_size or len(os.listdir(folder))  # the first since Linux 6.2
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
        limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (OSError, ValueError):
        return None
    return Vitals(
        rank=rank,
        fds=fds,
        fd_limit=max(limit, 0),
        memory_bytes=(int(resident) - int(shared)) * _PAGE,
    )


def _with_progress(worker: Worker, seen: Vitals | None) -> Vitals | None:
    pulse = worker.newest_pulse()
    if seen is None or pulse is None:
        return seen
    return replace(seen, step=pulse.step, collectives=pulse.collectives)


def _is_news(said: Vitals | None, seen: Vitals) -> bool:
    if said is None or said.fd_limit != seen.fd_limit:
        return True
    fds = max(_NEWS_FDS, int(_NEWS_SHARE * said.fds))
    memory = max(_NEWS_BYTES, int(_NEWS_SHARE * said.memory_bytes))
    return abs(seen.fds - said.fds) >= fds or abs(seen.memory_bytes - said.memory_bytes) >= memory
