"""Limits that end a run long after its start: open files and processes."""

import contextlib
import resource
from pathlib import Path

from harness.doctor.checks import Check

_FILES_LEAST = 1024
_FILES_PER_RANK = 64
"""Connections to all others in a few groups, data loaders, logs."""
_TASKS_PER_RANK = 64
"""Threads of PyTorch and of its data loaders."""


def files_wanted(ranks: int) -> int:
    return max(_FILES_LEAST, _FILES_PER_RANK * ranks)


def open_files(ranks: int) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = {"soft": soft, "hard": hard}
    wanted = files_wanted(ranks)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        able = hard == resource.RLIM_INFINITY or hard >= wanted
        return Check(
            name="open files",
            level="warn",
            says=f"a process may have {soft} open; {ranks} ranks may want {wanted}",
            help=f"ulimit -n {wanted}"
            if able
            else "raise the hard limit: limits.conf, LimitNOFILE",
            facts=facts,
        )
    many = "any number" if soft == resource.RLIM_INFINITY else str(soft)
    return Check(name="open files", level="ok", says=f"{many} a process", facts=facts)


def tasks(ranks: int) -> Check:
    """Processes and threads: of the user, and of this container."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    left = {"user": soft} if soft != resource.RLIM_INFINITY else {}
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup")
        most = (folder / "pids.max").read_text().strip()
        if most != "max":
            left["container"] = int(most) - int((folder / "pids.current").read_text())
    wanted = _TASKS_PER_RANK * ranks
    least = min(left.values(), default=wanted)
    if least < wanted:
        return Check(
            name="processes",
            level="warn",
            says=f"{least} more processes and threads may be made; {ranks} ranks may want {wanted}",
            help="raise ulimit -u, or the limit of the container (docker run --pids-limit)",
            facts=dict(left),
        )
    says = f"{least} more may be made" if left else "no limit"
    return Check(name="processes", level="ok", says=says, facts=dict(left))
