"""Signs of work of a rank that its progress does not show: output, input and output, CPU, a
debugger."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.agent import asleep, processes
from harness.processes import Turns, starved, turns
from harness.sightings import Activity

_CLOCK_SLACK, _LONG_AGO = 1.0, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one moment. `io_bytes` holds children that are alive too."""

    at: float
    cpu_seconds: float
    children_cpu_seconds: float
    io_bytes: int
    log_bytes: int
    log_at: float
    traced_by: int
    asleep_seconds: float | None
    turns: Turns


def read(pid: int, log: Path, below: Iterable[int] = ()) -> Reading:
    """What /proc and the log file say now of `pid` and of the processes `below` it, as far as they
    are alive; zeros for what may not be read."""
    stat = processes.read_stat(pid)
    children = [child for at in below if (child := processes.read_stat(at)) is not None]
    log_bytes, log_at = _size_and_time(log)
    return Reading(
        at=time.monotonic(),
        cpu_seconds=0.0 if stat is None else stat.cpu_seconds,
        children_cpu_seconds=sum(child.cpu_seconds for child in children),
        io_bytes=_io_bytes(pid) + sum(_io_bytes(child.pid) for child in children),
        log_bytes=log_bytes,
        log_at=log_at,
        traced_by=_tracer(pid),
        asleep_seconds=asleep.seconds_left(pid),
        turns=turns(pid),
    )


def between(first: Reading, second: Reading) -> Activity:
    """What was done between two readings; children that came or went count as if they had not."""
    seconds = second.at - first.at
    return Activity(
        seconds=round(seconds, 3),
        cpu_seconds=round(second.cpu_seconds - first.cpu_seconds, 3),
        children_cpu_seconds=round(
            max(0.0, second.children_cpu_seconds - first.children_cpu_seconds), 3
        ),
        io_bytes=max(0, second.io_bytes - first.io_bytes),
        log_bytes=max(0, second.log_bytes - first.log_bytes),
        log_quiet_seconds=_quiet(second.log_at, time.time()),
        traced_by=second.traced_by or first.traced_by,
        asleep_seconds=second.asleep_seconds,
        starved_seconds=round(min(seconds, starved(first.turns, second.turns)), 3),
    )


def _quiet(log_at: float, now: float) -> float:
    """Seconds since a log was written to. One written to in the future was so before somebody set
    the clock back: nobody knows when, and it is no sign of life."""
    return round(max(0.0, now - log_at), 3) if log_at <= now + _CLOCK_SLACK else _LONG_AGO


def _size_and_time(path: Path) -> tuple[int, float]:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_size, status.st_mtime
    return 0, 0.0


def _io_bytes(pid: int) -> int:
    """Bytes through read, write and their kin, to files, pipes and sockets alike."""
    text = _text(f"/proc/{pid}/io")
    fields = dict(line.split(": ") for line in text.splitlines() if ": " in line)
    return int(fields.get("rchar", 0)) + int(fields.get("wchar", 0))


def _tracer(pid: int) -> int:
    for line in _text(f"/proc/{pid}/status").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 8192).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
