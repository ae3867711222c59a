"""The script of ranks that the doctor starts: meet, measure, tell, each into a file of its own.

`python -m harness run ... -m harness.doctor.probe FOLDER`
"""

import contextlib
import hashlib
import json
import os
import resource
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch.distributed as dist

import harness
from harness.doctor import cores

_MEETINGS = 5


def main(folder: Path) -> None:
    began = time.monotonic()
    dist.init_process_group("gloo")
    apart_ns = _apart_ns()
    met = time.monotonic() - began
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = {
        "rank": dist.get_rank(),
        "host": os.uname().nodename,
        "cores": sorted(os.sched_getaffinity(0)),
        "met_seconds": round(met, 3),
        "block_seconds": cores.block_seconds(),
        "clock_seconds": round(apart_ns / 1e9, 6),
        "files_soft": soft,
        "files_hard": hard,
        "packages": _packages(),
        "code": _code(Path(harness.__file__).parent),
    }
    path = folder / f"rank{dist.get_rank():05d}.json"
    path.with_suffix(".part").write_text(json.dumps(told), encoding="utf-8")
    path.with_suffix(".part").rename(path)
    dist.destroy_process_group()


def _apart_ns() -> float:
    """By how much this rank's wall clock is ahead of the middle one. Ranks leave a barrier at about
    the same time; the middle of a few tells even where some of them are scheduled late."""
    seen = []
    for _ in range(_MEETINGS):
        dist.barrier()
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, time.time_ns())
        seen.append(told[dist.get_rank()] - statistics.median(told))
    return float(statistics.median(seen))


def _packages() -> dict[str, str]:
    """All that are installed, by name."""
    found = {}
    for package in metadata.distributions():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # metadata in pieces
            found[package.metadata["Name"].lower()] = package.version
    return found


def _code(folder: Path) -> dict[str, str]:
    """One digest of all source of a package, as one file named as it is there."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return {folder.name: digest.hexdigest()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
