"""Writing what is in memory as a checkpoint, in a process of its own: this one has no torch."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import orders as o
from harness.agent import processes
from harness.config import Job
from harness.events import MemoryKept
from harness.worker.assignment import start_code
from harness.worker.memoryfile import MemoryFile, Slot

Held = Callable[[int, int, int], tuple[MemoryFile, Slot] | None]


async def keep(
    order: o.KeepMemory,
    job: Job,
    held: Held,
    environ: Mapping[str, str],
    answer: Path,
    log: Path,
) -> MemoryKept:
    """Carry out `order`. The process writes its result to `answer`, all else to `log`."""
    done = MemoryKept(node_rank=-1, attempt=order.failed, step=order.step)
    found = {rank: held(rank, order.attempt, order.step) for rank in order.ranks}
    descriptors = {rank: place[0].descriptor for rank, place in found.items() if place}
    missing = sorted(found.keys() - descriptors.keys())
    if missing:
        return _failed(done, f"rank {missing[0]}'s part is not here any more")
    request = {
        "files": descriptors,
        "attempt": order.attempt,
        "step": order.step,
        "world_size": order.world_size,
        "twins": list(zip(order.lost, order.twins, strict=False)),
        "token": order.token,
        "answer": str(answer),
    }
    code = start_code("keeping", "sdk.checkpoint")
    command = [job.python or sys.executable, *job.python_flags, "-u", "-c", code]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, str(os.getpid()), json.dumps(request)],
                env=dict(environ),
                cwd=job.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=list(descriptors.values()),
            )
    except OSError as error:
        return _failed(done, f"it could not be started: {error}")
    process.returncode = 0  # watched by pidfd; Popen must not collect it in its own cleaning
    await _gone(process.pid)
    try:
        result = json.loads(answer.read_text(encoding="utf-8"))
        answer.unlink()
        return MemoryKept(**{**_fields(done), **result})
    except (OSError, ValueError, TypeError):
        return _failed(done, f"the process that wrote it died, see {log.name}")


def _fields(done: MemoryKept) -> dict[str, object]:
    return {"node_rank": done.node_rank, "attempt": done.attempt, "step": done.step}


def _failed(done: MemoryKept, why: str) -> MemoryKept:
    return MemoryKept(node_rank=done.node_rank, attempt=done.attempt, step=done.step, why=why)


async def _gone(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        processes.reap(pid)
