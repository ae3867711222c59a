"""Stopping the workers of a node: asked, then forced, until no process of theirs is left."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection

from harness import events as e
from harness import orders as o
from harness.agent import processes
from harness.agent.workers import Worker

_LOOK_SECONDS = 0.01
_ARRIVED_SECONDS = 0.002
"""After which all that a rank has written to its page before can be read here."""


async def stop_at_step(
    order: o.StopAtStep, workers: Collection[Worker], node_rank: int
) -> e.StopStepTaken | None:
    """Tell `workers` where to stop; the answer, where the order wants one."""
    alive = [worker for worker in workers if worker.alive and worker.attempt == order.attempt]
    if order.agreed:
        for worker in alive:
            worker.page.agree_to_stop(order.step)
        return None
    for worker in alive:
        worker.page.propose_stop(order.step)
    await asyncio.sleep(_ARRIVED_SECONDS)
    alive = [worker for worker in alive if worker.alive]
    return e.StopStepTaken(
        node_rank=node_rank,
        attempt=order.attempt,
        step=order.step,
        furthest=max((worker.page.asked_stop() for worker in alive), default=-1),
        missed=any(worker.page.missed_stop() for worker in alive),
    )


class Stopper:
    """Stops `workers`; `spare` gives the sessions that are the agent's own."""

    def __init__(self, workers: Collection[Worker], spare: Callable[[], Collection[int]]) -> None:
        self._workers = workers
        self._spare = spare
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Forget about the grace that is left."""
        self._hurry.set()

    async def stop(self, grace: float) -> list[int]:
        """SIGTERM and SIGCONT, `grace` seconds, SIGKILL; returns when nothing is left.

        The result is the ranks that let the whole grace pass and had to be killed.
        """
        stubborn: list[int] = []
        alive = [worker for worker in self._workers if worker.alive]
        for worker in alive:
            worker.told_to_stop = True
        if grace > 0 and alive:
            for worker in alive:
                worker.ask_to_stop()
            await self._wait(alive, grace)
            if not self._hurry.is_set():
                stubborn = sorted(worker.rank for worker in alive if worker.alive)
        await self._kill()
        return stubborn

    async def _wait(self, alive: list[Worker], grace: float) -> None:
        ends = [worker.ended for worker in alive]
        all_ended = asyncio.ensure_future(asyncio.wait(ends))
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                [all_ended, hurried], timeout=grace, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            all_ended.cancel()
            hurried.cancel()

    async def _kill(self) -> None:
        """SIGKILL the ranks and all they have started, wherever it was reparented to."""
        me = os.getpid()
        while True:
            spare = self._spare()
            left = [stat for stat in processes.descendants(me) if stat.session not in spare]
            ours = {worker.pid for worker in self._workers if worker.alive}
            for stat in left:
                if stat.state == "Z" and stat.parent == me and stat.pid not in ours:
                    processes.reap(stat.pid)
            alive = [stat for stat in left if stat.state != "Z"]
            processes.signal_all(alive, signal.SIGKILL)
            if not alive and not ours:
                return
            await asyncio.sleep(_LOOK_SECONDS)
