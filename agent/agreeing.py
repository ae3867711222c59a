"""A step that all ranks agree on, to stop there or to save: written into the ranks' pages."""

import asyncio
from collections.abc import Collection

from harness import events as e
from harness import orders as o
from harness.agent.workers import Worker
from harness.worker import pulse

_ARRIVED_SECONDS = 0.002
"""After which all that a rank has written to its page before can be read here."""


async def tell_step(
    order: o.StopAtStep | o.SaveAtStep, workers: Collection[Worker], node_rank: int
) -> e.StopStepTaken | e.SaveStepTaken | None:
    """Tell `workers` of the step; the answer, where the order wants one."""
    stops = isinstance(order, o.StopAtStep)
    at = pulse.STOP if stops else pulse.SAVE
    alive = [worker for worker in workers if worker.alive and worker.attempt == order.attempt]
    if order.agreed:
        for worker in alive:
            worker.page.agree(at, order.step)
        return None
    asks_only = order.step < 0
    if not asks_only:
        for worker in alive:
            worker.page.propose(at, order.step)
        await asyncio.sleep(_ARRIVED_SECONDS)
        alive = [worker for worker in alive if worker.alive]
    answer = e.StopStepTaken if stops else e.SaveStepTaken
    return answer(
        node_rank=node_rank,
        attempt=order.attempt,
        step=order.step,
        furthest=max((worker.page.asked(at) for worker in alive), default=-1),
        missed=not asks_only and any(worker.page.missed(at) for worker in alive),
    )
