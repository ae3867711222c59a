"""Shared memory, disk and memory: is there room for the ranks?"""

import os
import re
import tempfile
import time
from pathlib import Path

from harness import runtimedir
from harness.agent.vitals import memory_available
from harness.doctor.checks import Check, Level
from harness.errors import HarnessError
from harness.sizes import size_text

SHM = Path("/dev/shm")
MIB, GIB = 1 << 20, 1 << 30
_SHM_PER_RANK = 64 * MIB
"""What a data loader with a few workers takes; the default of a container is 64 MiB in all."""
_DISK_LEAST = 256 * MIB
_DISK_LITTLE = 10 * GIB
_WRITTEN = 8 * MIB
_SLOW_SECONDS = 2.0
_RANK_BYTES = 256 * MIB
"""A fresh process that has imported PyTorch; forked ones share most of it."""


def shared_memory(ranks: int) -> list[Check]:
    """Its size, and what dead processes have left in it."""
    seen = os.statvfs(SHM)
    free, size = seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize
    facts = {"free_bytes": free, "size_bytes": size}
    if not os.access(SHM, os.W_OK):
        return [
            Check(
                name="shared memory",
                level="fail",
                says=f"{SHM} cannot be written to",
                help="data loaders and collectives on one node need it; mount it with mode 1777",
                facts=facts,
            )
        ]
    wanted = ranks * _SHM_PER_RANK
    says = f"{size_text(free)} of {size_text(size)} free in {SHM}"
    if free < wanted:
        level: Level = "fail" if free < 8 * MIB else "warn"
        help = (
            f"{ranks} ranks with data loaders may want {size_text(wanted)}: "
            "docker run --shm-size, or a memory-backed emptyDir at /dev/shm"
        )
        first = Check(name="shared memory", level=level, says=says, help=help, facts=facts)
    else:
        first = Check(name="shared memory", level="ok", says=says, facts=facts)
    return [first, *_left_over()]


def _left_over() -> list[Check]:
    """PyTorch names its files torch_PID_...: those of processes that are gone are nobody's."""
    files: list[str] = []
    size = 0
    for path in SHM.iterdir():
        named = re.match(r"torch_(\d+)_", path.name)
        if named is None or Path("/proc", named[1]).exists():
            continue
        try:
            size += path.stat().st_size
        except OSError:
            continue
        files.append(path.name)
    if not files:
        return []
    return [
        Check(
            name="left over",
            level="warn",
            says=f"{len(files)} files of dead processes hold {size_text(size)} of {SHM}",
            help=f"remove them when no other container uses this {SHM}: rm {SHM}/torch_PID_*",
            facts={"files": files[:20], "bytes": size},
        )
    ]


def disk(folder: Path) -> Check:
    """Room and speed where runs are written: the folder itself, or what it would be made in."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    seen = os.statvfs(there)
    free, share = seen.f_bavail * seen.f_frsize, seen.f_bavail / max(1, seen.f_blocks)
    facts: dict[str, object] = {"folder": str(there), "free_bytes": free}
    if not os.access(there, os.W_OK | os.X_OK):
        return _disk(
            "fail", f"{there} cannot be written to", "choose another with --runs-dir", facts
        )
    if seen.f_files and not seen.f_favail:
        return _disk("fail", f"{there} has no inode left", "remove files, many small ones", facts)
    if free < _DISK_LEAST:
        help = "remove old runs and checkpoints, or choose another with --runs-dir"
        return _disk("fail", f"{size_text(free)} free in {there}", help, facts)
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(b"\0" * _WRITTEN)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    facts["write_seconds"] = round(seconds, 4)
    says = f"{size_text(free)} free in {there}, {size_text(_WRITTEN)} written in {seconds:.2f} s"
    if seconds > _SLOW_SECONDS:
        return _disk("warn", says, "checkpoints will be slow here", facts)
    if free < _DISK_LITTLE and share < 0.05:
        help = "room for few checkpoints: see harness ckpt prune"
        return _disk("warn", says, help, facts)
    return _disk("ok", says, "", facts)


def _disk(level: Level, says: str, help: str, facts: dict[str, object]) -> Check:
    return Check(name="disk", level=level, says=says, help=help, facts=facts)


def temporary() -> Check:
    """Where sockets are made: under the temporary directory, unless its path is too long."""
    wanted = tempfile.gettempdir()
    try:
        folder = str(runtimedir.parent_folder())
    except HarnessError as error:
        return Check(
            name="temporary files",
            level="fail",
            says=error.message,
            help=error.help or "",
            facts={"folder": wanted},
        )
    says = f"in {folder}"
    if folder != wanted:
        says += f"; the path {wanted} is too long for sockets in it"
    return Check(name="temporary files", level="ok", says=says, facts={"folder": folder})


def memory(ranks: int) -> Check:
    """What is left, against what so many fresh ranks take before they load anything."""
    left = memory_available()
    facts = {"available_bytes": left}
    if not left:
        return Check(name="memory", level="skip", says="not told by this kernel", facts=facts)
    says = f"{size_text(left)} available"
    if left < ranks * _RANK_BYTES:
        return Check(
            name="memory",
            level="warn",
            says=f"{says}; {ranks} ranks take {size_text(ranks * _RANK_BYTES)} before any model",
            help="fewer ranks on this node, or a higher limit for this container",
            facts=facts,
        )
    return Check(name="memory", level="ok", says=says, facts=facts)
