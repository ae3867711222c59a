"""The metrics of a node: what its own ranks do and hold, read when somebody asks."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from harness.agent.gpus import Gpus
from harness.agent.processes import read_stat
from harness.agent.readings import read_vitals
from harness.agent.vitals import memory_available
from harness.agent.workers import Worker
from harness.config import Job
from harness.metrics import catalogue as c
from harness.metrics.catalogue import Sample
from harness.metrics.gpu import of_gpus
from harness.version import version


async def expose(
    job: Job,
    run_dir: Path,
    node_rank: int,
    workers: Callable[[], Collection[Worker]],
    gpus: Gpus,
    notice: Callable[[str], None],
) -> None:
    """Tell metrics for as long as the agent lives, if they are wanted."""
    address = job.metrics_at(agent=True)
    if not address:
        return
    from harness.metrics.endpoint import FOLDER, NotOpen, open_endpoint

    here = Here(node_rank)
    try:
        with open_endpoint(
            address,
            token=job.token,
            run=run_dir.name,
            take=lambda: [
                *here.samples(workers()),
                *of_gpus(str(node_rank), gpus.gpus, gpus.xids),
            ],
            found_in=run_dir / FOLDER / f"agent{node_rank}.json",
            next_free=True,
        ):
            await asyncio.Event().wait()
    except NotOpen as error:
        notice(f"harness: {error}")


class Here:
    """The numbers of one node."""

    def __init__(self, node_rank: int) -> None:
        self._node = str(node_rank)
        self._host = os.uname().nodename
        self._version = version()

    def samples(self, workers: Iterable[Worker]) -> list[Sample]:
        """Of the node and of each of `workers`."""
        found = [
            Sample(c.NODE_INFO, 1, (self._node, self._host, self._version)),
            Sample(c.NODE_MEMORY, memory_available(), (self._node,)),
        ]
        for worker in sorted(workers, key=lambda worker: worker.rank):
            found += self._rank(worker)
        return found

    def _rank(self, worker: Worker) -> list[Sample]:
        labels = (self._node, str(worker.rank))
        found = [Sample(c.RANK_UP, float(worker.alive), labels)]
        pulse = worker.newest_pulse() if worker.guest else None
        if pulse is not None:
            found += [
                Sample(c.RANK_PHASE, 1, (*labels, pulse.phase)),
                Sample(c.RANK_STEP, pulse.step, labels),
                Sample(c.RANK_COLLECTIVES, pulse.collectives, labels),
            ]
            if pulse.step_ns:
                found.append(Sample(c.RANK_LAST_STEP, pulse.step_ns / 1e9, labels))
            if pulse.heartbeat_ns:
                age = max(0.0, (time.monotonic_ns() - pulse.heartbeat_ns) / 1e9)
                found.append(Sample(c.RANK_HEARTBEAT, age, labels))
            if pulse.loss is not None or not pulse.loss_finite:
                loss = float("nan") if pulse.loss is None else pulse.loss
                found.append(Sample(c.RANK_LOSS, loss, labels))
            if pulse.tokens:
                found.append(Sample(c.RANK_TOKENS, pulse.tokens, labels))
        return found + self._held(worker, labels) if worker.alive else found

    def _held(self, worker: Worker, labels: tuple[str, ...]) -> list[Sample]:
        found: list[Sample] = []
        held = read_vitals(worker.rank, worker.pid)
        if held is not None:
            found += [
                Sample(c.RANK_FDS, held.fds, labels),
                Sample(c.RANK_MEMORY, held.memory_bytes, labels),
            ]
            if held.fd_limit:
                found.append(Sample(c.RANK_MAX_FDS, held.fd_limit, labels))
        stat = read_stat(worker.pid)
        if stat is not None:
            found.append(Sample(c.RANK_CPU, stat.cpu_seconds, labels))
        return found
