"""Did memory run out, and how much is left? From the kernel's own counters, where readable."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_KMSG_LIMIT = 4_000_000
_FRESH_SECONDS = 60.0
"""An older line is about another process that had the same pid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCounter:
    """How often the kernel has killed in this process's cgroup, and the limit that made it."""

    kills: int
    limit_bytes: int | None


def _cgroup_folders() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders.append(Path("/sys/fs/cgroup", path.lstrip("/")))
        elif "memory" in controllers.split(","):
            folders.append(Path("/sys/fs/cgroup/memory", path.lstrip("/")))
    # Inside a container the path may be the host's, while the mount shows our own part alone.
    return [*folders, Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]


def read_oom_counter() -> OomCounter | None:
    """None where no memory cgroup can be read."""
    for folder in _cgroup_folders():
        for events, limit in (
            ("memory.events", "memory.max"),
            ("memory.oom_control", "memory.limit_in_bytes"),
        ):
            try:
                text = (folder / events).read_text(encoding="utf-8")
            except OSError:
                continue
            found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
            if found:
                return OomCounter(kills=int(found[1]), limit_bytes=_limit(folder / limit))
    return None


def memory_available() -> int:
    """Bytes that the node, or the nearest limit of this container, has left; 0: not known."""
    left: list[int] = []
    for folder in _cgroup_folders():
        for used, limit in (
            ("memory.current", "memory.max"),
            ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        ):
            most, now = _limit(folder / limit), _limit(folder / used)
            if most is not None and now is not None:
                left.append(max(0, most - now + _reclaimable(folder)))
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        found = None
    if found:
        left.append(int(found[1]) << 10)
    return min(left, default=0)


def _reclaimable(folder: Path) -> int:
    """Bytes of a cgroup that the kernel gives up when memory is wanted: files nobody uses now."""
    try:
        text = (folder / "memory.stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"^inactive_file (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def oom_sentence(before: OomCounter | None, pid: int) -> str | None:
    """What counters and kernel log say of a process that was killed by SIGKILL, if anything."""
    logged = _kernel_log_names(pid)
    if logged:
        return f"the kernel log says: {logged}"
    now = read_oom_counter()
    if before is None or now is None or now.kills <= before.kills:
        return None
    limit = "" if now.limit_bytes is None else f" of {now.limit_bytes / 2**30:.1f} GiB"
    return (
        f"the memory limit{limit} of this container was hit: the kernel killed "
        f"{now.kills - before.kills} of its processes"
    )


def _kernel_log_names(pid: int) -> str | None:
    """The line about an out-of-memory kill of `pid`, where the kernel log may be read."""
    wanted = re.compile(
        rf"(?:Out of memory|Memory cgroup out of memory).*[Kk]illed process {pid}\b.*"
    )
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: str | None = None
    size = 0
    try:
        while size < _KMSG_LIMIT:
            try:
                record = os.read(descriptor, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # records were overwritten while we read
            except OSError:
                break
            if not record:
                break
            size += len(record)
            match = wanted.search(record)
            if match and _age_seconds(record) < _FRESH_SECONDS:
                found = match[0].split("\n")[0]
    finally:
        os.close(descriptor)
    return found


def _age_seconds(record: str) -> float:
    """Age of a /dev/kmsg record, `priority,sequence,microseconds,flags;text`."""
    fields = record.partition(";")[0].split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return 0.0
    return time.monotonic() - int(fields[2]) / 1e6
