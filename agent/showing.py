"""Stacks because somebody asked, of ranks that nothing is wrong with: nobody is disturbed."""

import asyncio
import time

from harness.agent import processes, spyreport, stacks
from harness.agent.workers import Worker
from harness.events import StacksTaken
from harness.orders import TakeStacks
from harness.sightings import RankStack


async def take_stacks(
    workers: list[Worker], order: TakeStacks, node_rank: int, seconds: float
) -> StacksTaken:
    """The stacks of `workers` and their Python children, within `seconds`."""
    began = time.monotonic()
    taker = stacks.Taker(began + seconds)
    taken = await asyncio.gather(*(_of_worker(worker, order, taker) for worker in workers))
    return StacksTaken(
        request=order.request,
        node_rank=node_rank,
        stacks=tuple(taken),
        seconds=round(time.monotonic() - began, 3),
    )


async def _of_worker(worker: Worker, order: TakeStacks, taker: stacks.Taker) -> RankStack:
    if not worker.alive:
        missing = f"the process is gone ({worker.exit_text})"
        return RankStack(rank=worker.rank, pid=worker.pid, state="Z", missing=missing)
    subject = stacks.Subject(
        pid=worker.pid,
        server=worker.files.server if worker.guest else None,
        with_locals=order.with_locals,
    )
    return await of_process(worker.rank, subject, taker)


async def of_process(rank: int, subject: stacks.Subject, taker: stacks.Taker) -> RankStack:
    """The stack of any process that is a rank, and of its Python children."""
    stack, children = await asyncio.gather(taker.take(subject), taker.children(subject.pid))
    stat = processes.read_stat(subject.pid)
    return RankStack(
        rank=rank,
        pid=subject.pid,
        state="Z" if stat is None else stat.state,
        frames=stack.frames[: spyreport.MOST_FRAMES],
        frames_by=stack.by,
        user_frame=spyreport.user_frame(stack.frames),
        missing=stack.missing,
        variables=stack.variables[: spyreport.MOST_FRAMES],
        children=children,
    )
