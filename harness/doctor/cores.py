"""The cores that this process may use: enough for the ranks, and equally fast?"""

import contextlib
import hashlib
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.doctor.checks import Check
from harness.topology import ranks_text

SLOW = 1.35
"""A core this many times slower than the middle one is told."""
_BLOCK = b"\0" * (1 << 20)
_ROUNDS = 5
_SIDE_BY_SIDE = 8
_MOST_CORES = 256


def count(ranks: int) -> Check:
    """Cores against ranks; a container may have less time than cores."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    facts: dict[str, object] = {"cores": cores, "quota": quota}
    able = cores if quota is None else min(float(cores), quota)
    says = f"{cores} cores" + (
        "" if quota is None else f", of which {quota:g} may be used at a time"
    )
    if able < ranks:
        return Check(
            name="cores",
            level="warn",
            says=f"{says}, for {ranks} ranks",
            help="ranks that share a core wait for each other in every collective",
            facts=facts,
        )
    return Check(name="cores", level="ok", says=f"{says} for {_ranks(ranks)}", facts=facts)


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def _quota() -> float | None:
    """Cores' worth of time that the container may use; None for no limit."""
    with contextlib.suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    return None


def speed() -> Check:
    """The same work on each core. Time that others took from a core does not count against it."""
    took = measure(sorted(os.sched_getaffinity(0))[:_MOST_CORES])
    if len(took) < 2:
        return Check(name="core speed", level="skip", says="one core: nothing to compare")
    middle = statistics.median(took.values())
    slow = slow_cores(took)
    rate = len(_BLOCK) / middle / 1e6
    facts = {
        "mb_per_second": {str(core): round(len(_BLOCK) / s / 1e6, 1) for core, s in took.items()},
        "slow": slow,
    }
    if slow:
        factor = max(took[core] for core in slow) / middle
        what = "core" if len(slow) == 1 else "cores"
        return Check(
            name="core speed",
            level="warn",
            says=f"{what} {ranks_text(slow)} up to {factor:.1f} times slower than the others",
            help="every step waits for its slowest rank: bind ranks elsewhere (taskset), look for "
            "heat (dmesg), power limits, or a busy neighbour of this virtual machine",
            facts=facts,
        )
    says = f"{len(took)} cores alike, {rate:.0f} MB/s of SHA-256 each"
    return Check(name="core speed", level="ok", says=says, facts=facts)


def slow_cores(took: Mapping[int, float]) -> list[int]:
    """Cores that are slower than the middle one by SLOW."""
    middle = statistics.median(took.values())
    return sorted(core for core, seconds in took.items() if seconds > SLOW * middle)


def measure(cores: Sequence[int]) -> dict[int, float]:
    """By core: CPU seconds for a MiB, the best of a few rounds. A core that refuses is left out."""
    took: dict[int, float] = {}

    def work(core: int) -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})  # of this thread alone
            took[core] = block_seconds()

    for at in range(0, len(cores), _SIDE_BY_SIDE):
        threads = [
            threading.Thread(target=work, args=(core,)) for core in cores[at : at + _SIDE_BY_SIDE]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return dict(sorted(took.items()))


def block_seconds() -> float:
    """CPU seconds for a MiB where this thread runs, the best of a few rounds."""
    return min(_round() for _ in range(_ROUNDS))


def _round() -> float:
    """hashlib lets go of the GIL, so that threads run side by side."""
    began = time.thread_time()
    hashlib.sha256(_BLOCK).digest()
    return time.thread_time() - began
