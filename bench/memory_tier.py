"""What the memory tier costs a step, and what a restart from it takes beside one from the disk.

`python bench/memory_tier.py [--width N] [--steps N] [--rounds N] [--dir DIR] [--write]`: two ranks
under `harness run`, FSDP2, AdamW in single precision. Every third step is staged, so that drift
hits all kinds alike; beside the one after it digests are made, the third is left alone. Then a rank
is killed, and the next attempt loads the same step from memory and from the disk in turn. Medians.
`--write` puts the tables into bench/results/memory_tier.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "memory_tier.md"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("scripts") / "memory_tier.py"
LIMIT = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="of the model's layers")
    parser.add_argument("--steps", type=int, default=30, help="of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each kind")
    parser.add_argument("--dir", help="where to write; default: the folder for temporary files")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        told = measure(options, Path(folder))
    text = table(options, told["steps"], told["loads"])
    print(text)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n", encoding="utf-8")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """What the ranks told, by kind."""
    command = [
        *(sys.executable, "-m", "harness", "run", "--runs-dir", str(folder / "runs")),
        *("--nproc-per-node", "2", str(SCRIPT)),
        *(str(options.width), str(options.steps), str(options.rounds), str(folder / "ck")),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        _, mark, words = line.partition("BENCH ")
        if mark:
            content = json.loads(words)
            found[content["kind"]] = content
    if {"steps", "loads"} - found.keys():
        sys.exit(f"the run did not tell what was wanted:\n{done.stdout}{done.stderr}")
    return found


def table(options: argparse.Namespace, steps: dict[str, Any], loads: dict[str, Any]) -> str:
    import torch

    staged, after, quiet, blocked = (
        statistics.median(steps[kind]) for kind in ("staged", "after", "quiet", "blocked")
    )
    pairs = zip(steps["staged"], steps["after"], steps["quiet"], strict=True)
    cost = statistics.median(one + two - 2 * three for one, two, three in pairs)
    rows = []
    first = statistics.median(loads["memory"])
    for kind in ("memory", "disk", "disk, not cached"):
        seconds = statistics.median(loads[kind])
        rows.append(f"| {kind} | {seconds:.3f} | {seconds / first:.1f} |")
    every = ", ".join(f"{n} steps {cost / n / quiet:.1%}" for n in (5, 10, 50))
    return "\n".join(
        [
            "# The memory tier",
            "",
            f"`python bench/memory_tier.py --width {options.width} --steps {options.steps} "
            f"--rounds {options.rounds}`: Python {platform.python_version()}, torch "
            f"{torch.__version__},",
            f"{os.cpu_count()} cores, two ranks with one thread each, "
            f"{loads['bytes'] / 1e6:.0f} MB of state in all. Medians of one run in which the kinds "
            "take turns.",
            "",
            "| a step | seconds |",
            "|---|---|",
            f"| that is left alone | {quiet:.4f} |",
            f"| that is staged | {staged:.4f} |",
            f"| of that, in `remember` | {blocked:.4f} |",
            f"| after it, while digests are made | {after:.4f} |",
            f"| more than left alone, both of them, step by step | {cost:.4f} |",
            "",
            f"Of the training, when staged once in {every}. The digests share the cores with the "
            "ranks here.",
            f"Load average of the machine at the end: {os.getloadavg()[0]:.1f}.",
            "",
            "| load of the same step, verified | seconds | times that of memory |",
            "|---|---|---|",
            *rows,
        ]
    )


if __name__ == "__main__":
    main()
