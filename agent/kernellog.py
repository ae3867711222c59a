"""The kernel log as it grows, and what it says of GPUs."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_RECORD = 8192
_MOST_RECORDS = 1000
"""At a time: a storm of errors must not hold up the agent."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): (\d+),? ?(.*)")
_PID = re.compile(r"\bpid='?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error report of NVIDIA's driver. `pid` 0: it names no process."""

    bus_id: str
    number: int
    text: str
    pid: int = 0


class KernelLog:
    """New lines of the kernel log from now on; none where it may not be read."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            pass  # a pipe cannot be sought in, and without the right there is nothing to read

    def lines(self) -> list[str]:
        """Those that have come since the last call."""
        found: list[str] = []
        for _ in range(_MOST_RECORDS):
            if self._descriptor < 0:
                break
            try:
                record = os.read(self._descriptor, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                break
            if not record:
                break
            found += record.decode("utf-8", "replace").splitlines()
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def xid_of(line: str) -> Xid | None:
    """What a line of the kernel log says of a GPU, if anything."""
    found = _XID.search(line)
    if found is None:
        return None
    pid = _PID.search(found[3])
    return Xid(
        bus_id=found[1].lower(),
        number=int(found[2]),
        text=found[0].strip()[:300],
        pid=int(pid[1]) if pid else 0,
    )
