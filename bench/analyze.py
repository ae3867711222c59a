"""`harness analyze` beside torch's `fr_trace` on the same dumps of a hung job.

    .venv/bin/python bench/analyze.py [--ranks 64] [--entries 2000] [--only ours]

The dumps are synthetic NCCL pickles (schema 2.9): a world group, tensor-parallel groups of 8 and
data-parallel groups over a full buffer, and one rank that never comes to the last all_reduce of
the world. Both must name it. Writes a Markdown table to stdout and to bench/results/analyze.md.
The full table: --ranks 64,256,1024 (fr_trace alone takes minutes of CPU and gigabytes there).
CPU seconds are those of all processes, peak memory is the largest sum of their resident sets.
"""

import argparse
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
TENSOR_PARALLEL = 8
STACKS = 48
T0 = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one analysis took, and whom it named."""

    cpu: float
    wall: float
    peak_mb: float
    named: str


def stacks() -> list[list[dict[str, Any]]]:
    """Distinct stacks of a model's layers, as records hold them."""
    return [
        [
            {
                "name": f"layer{at}_frame{depth}",
                "filename": f"/opt/train/model_{depth}.py",
                "line": at,
            }
            for depth in range(12)
        ]
        for at in range(STACKS)
    ]


def groups_of(rank: int, ranks: int) -> dict[str, dict[str, str]]:
    first = rank - rank % TENSOR_PARALLEL
    tensor = list(range(first, min(first + TENSOR_PARALLEL, ranks)))
    data = list(range(rank % TENSOR_PARALLEL, ranks, TENSOR_PARALLEL))
    return {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
        str(1 + first // TENSOR_PARALLEL): {
            "name": str(1 + first // TENSOR_PARALLEL), "desc": "mesh_tp", "ranks": str(tensor),
        },
        str(10_000 + rank % TENSOR_PARALLEL): {
            "name": str(10_000 + rank % TENSOR_PARALLEL), "desc": "mesh_dp", "ranks": str(data),
        },
    }  # fmt: skip


def dump(rank: int, ranks: int, entries: int, missing: int) -> dict[str, Any]:
    """The record of `rank`: its last entry is the collective that `missing` has not called."""
    config = groups_of(rank, ranks)
    names = [(name, told["desc"]) for name, told in config.items()]
    frames = stacks()
    counts = [0, 0, 0]
    made = []
    for at in range(entries):
        last = at == entries - 1
        which = 0 if last or at % 50 == 49 else 2 if at % 10 == 9 else 1
        if last and rank == missing:
            break
        counts[which] += 1
        size = [[4096, 1, 5120 + at % 20]]
        made.append(
            {
                "frames": frames[at % STACKS],
                "record_id": at,
                "pg_id": which,
                "process_group": names[which],
                "thread_name": "pt_main_thread",
                "thread_id": "140234",
                "collective_seq_id": counts[which],
                "p2p_seq_id": 0,
                "op_id": counts[which],
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": T0 + at * 1_000_000 + rank,
                "input_sizes": size,
                "input_dtypes": ["BFloat16"],
                "output_sizes": size,
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if last else "completed",
                "time_discovered_started_ns": None if last else T0 + at * 1_000_000 + 1000,
                "time_discovered_completed_ns": None if last else T0 + at * 1_000_000 + 9000,
                "retired": not last,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": config,
        "pg_status": {},
        "entries": made,
    }


def write(folder: Path, ranks: int, entries: int, missing: int) -> None:
    for rank in range(ranks):
        path = folder / f"trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dump(rank, ranks, entries, missing), protocol=2))


def measure(command: Sequence[str], name: Any) -> Cost:
    """Run `command` to its end; `name` finds in its output whom it named."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        peak = 0
        watched = psutil.Process(process.pid)
        while True:
            pid, _, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = 0
                break
            peak = max(peak, resident(watched))
            time.sleep(0.02)
        out.seek(0)
        text = out.read()
    return Cost(
        cpu=usage.ru_utime + usage.ru_stime,
        wall=time.monotonic() - began,
        peak_mb=peak / 1e6,
        named=name(text),
    )


def resident(process: psutil.Process) -> int:
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_info().rss
    except psutil.Error:
        return total
    return total


def ours(text: str) -> str:
    incidents = json.loads(text.strip().splitlines()[-1])["incidents"]
    return ",".join(str(rank) for told in incidents for rank in told["first_failing"])


def theirs(text: str) -> str:
    found = re.findall(r"[Mm]issing ranks[^{]*\{([\d, ]+)\}", text)
    return found[0].replace(" ", "") if found else "nobody"


def compare(ranks: int, entries: int, only: str) -> dict[str, Cost]:
    missing = ranks // 3
    found = {}
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        write(Path(folder), ranks, entries, missing)
        if only != "theirs":
            command = [sys.executable, "-m", "harness", "analyze", folder, "--json"]
            found["harness analyze"] = measure(command, ours)
        if only != "ours":
            module = "torch.distributed.flight_recorder.fr_trace"
            command = [sys.executable, "-m", module, folder, "-p", "trace_rank_"]
            found["fr_trace"] = measure(command, theirs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ranks", default="64", help="comma-separated")
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--only", choices=("ours", "theirs", "both"), default="both")
    arguments = parser.parse_args()
    lines = [
        "# Analysis of flight records",
        "",
        f"{arguments.entries} entries per rank; one rank misses the last all_reduce of the world.",
        "",
        "| ranks | analysis | CPU s | wall s | peak MB | names |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for ranks in (int(part) for part in arguments.ranks.split(",")):
        found = compare(ranks, arguments.entries, arguments.only)
        for who, cost in found.items():
            row = (
                f"| {ranks} | {who} | {cost.cpu:.2f} | {cost.wall:.1f} | {cost.peak_mb:.0f}"
                f" | {cost.named} (planted: {ranks // 3}) |"
            )
            lines.append(row)
            print(row, flush=True)
        if len(found) == 2:
            ratio = found["fr_trace"].cpu / found["harness analyze"].cpu
            lines.append(f"| {ranks} | ratio | {ratio:.1f} x less CPU | | | |")
            print(lines[-1], flush=True)
    if arguments.only == "both":
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        (results / "analyze.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
