"""Stopping the workers of a node: asked, then forced, until no process of theirs is left."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection

from harness.agent import processes
from harness.agent.workers import Worker

_LOOK_SECONDS = 0.01


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
