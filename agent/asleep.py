"""How long a thread that sleeps will go on sleeping, as the kernel was told: nothing can wake it
earlier but a signal."""

import os
import platform
import struct
import time

_CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}.get(platform.machine())
"""Number of the system call clock_nanosleep, from the kernel's asm/unistd.h; `time.sleep` is it."""
_TIMER_ABSTIME = 1
_CLOCKS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC)
_TIMESPEC = struct.Struct("=qq")


def seconds_left(pid: int) -> float | None:
    """Of the main thread of `pid`, when it is in a sleep until a point in time; else None.

    `time.sleep` of Python 3.11 and later is one. Reads /proc/PID/syscall and the process's memory,
    which needs the right to trace it: a child's parent has it.
    """
    try:
        fields = _read(f"/proc/{pid}/syscall", 256).split()
    except OSError:
        return None
    if len(fields) < 4 or _CLOCK_NANOSLEEP is None or fields[0] != str(_CLOCK_NANOSLEEP).encode():
        return None
    clock, flags, until_at = (int(field, 16) for field in fields[1:4])
    if flags != _TIMER_ABSTIME or clock not in _CLOCKS:
        return None
    try:
        data = _read(f"/proc/{pid}/mem", _TIMESPEC.size, until_at)
        seconds, nanoseconds = map(int, _TIMESPEC.unpack(data))
    except (OSError, struct.error):
        return None
    return round(max(0.0, seconds + nanoseconds / 1e9 - time.clock_gettime(clock)), 3)


def _read(path: str, size: int, at: int = 0) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)
