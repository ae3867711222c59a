"""Harm done on purpose to a local rank."""

import asyncio
import signal
import time
from collections.abc import Callable

from harness.agent.workers import Worker
from harness.events import FaultInjected
from harness.faults import Fault

KINDS = ("kill",)
_LOOK_SECONDS = 0.0005
"""Between two looks at the step: less than a step of the smallest model takes."""


def unknown(kind: str) -> str:
    """One line on a kind of fault that there is none of."""
    return f"harness: unknown kind of fault: {kind!r} (known: {', '.join(KINDS)})"


async def inject(
    fault: Fault, find: Callable[[int], Worker | None]
) -> tuple[Worker, FaultInjected]:
    """Wait until `fault` is due and do it. `find` gives the rank's live worker of the moment."""
    while True:
        worker = find(fault.rank)
        if worker is not None and (fault.step is None or worker.page.step() >= fault.step):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    injected_ns = time.time_ns()
    worker.send_signal(signal.SIGKILL)
    return worker, FaultInjected(fault=fault, pid=worker.pid, injected_ns=injected_ns)
