"""What a run must not leave behind: processes, listening ports, shared memory, temporary files.

All processes of a run under chaos carry a mark in their environment, so that they are known as its
own whoever became their parent.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "CHAOS_RUN"
_SHM = Path("/dev/shm")
_LISTENING = "0A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residue:
    """What is left; nothing of it should be there."""

    orphans: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    shm: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.orphans or self.ports or self.shm or self.files)

    def words(self) -> str:
        parts = [
            f"{what}: {', '.join(map(str, found))}"
            for what, found in (
                ("processes", self.orphans),
                ("ports", self.ports),
                ("shared memory", self.shm),
                ("temporary files", self.files),
            )
            if found
        ]
        return "; ".join(parts) or "nothing left"


def marked(mark: str) -> dict[int, str]:
    """Living processes that carry `mark`, and what they are."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle not in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                continue
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry)] = command.decode(errors="replace").strip()[:80]
    return found


def shared_memory() -> set[str]:
    """Names of what lies in shared memory now."""
    try:
        return set(os.listdir(_SHM))
    except OSError:
        return set()


def listening() -> set[int]:
    """TCP ports of this machine that somebody listens on."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def left(
    mark: str, pids: Iterable[int], ports: Iterable[int], before: set[str], temp: Path
) -> Residue:
    """What the run of `mark` has left. `pids` were its processes, `ports` its doors; `before` lay
    in shared memory when it began, `temp` is its folder for temporary files."""
    own = {str(pid) for pid in pids}
    new = shared_memory() - before
    return Residue(
        orphans=tuple(f"{pid} {what}" for pid, what in sorted(marked(mark).items())),
        ports=tuple(sorted(listening() & set(ports))),
        shm=tuple(sorted(name for name in new if own & set(re.findall(r"\d+", name)))),
        # torch's and multiprocessing's own folders stay where a rank is killed.
        files=tuple(sorted(each.name for each in temp.glob("harness-*"))),
    )


def kill_marked(mark: str) -> None:
    """SIGKILL to all that is left of the run of `mark`."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
