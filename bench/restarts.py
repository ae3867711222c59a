"""Restarts of a Gloo job: how many work, and what one costs, beside torchrun in the same run.

    .venv/bin/python bench/restarts.py [--restarts 100] [--ranks 4] [--torchrun-restarts 10]

The script loses another rank at another step in every attempt (exit 3 or SIGKILL, alternating).
A restart has worked when the next attempt reports its first step. torchrun is measured as it is
and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Writes bench/results/restarts.md.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "crash_each_attempt.py"


def run(command: list[str], limit: float, extra: dict[str, str]) -> tuple[str, float]:
    """Output of `command`, ended at `limit` seconds, and how long it took."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **extra},
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate()
    return output, time.monotonic() - began


def row(name: str, output: str, asked: int, seconds: float) -> str:
    """One table row from what the script printed."""
    began = {
        int(a): float(t) for a, t in re.findall(r"attempt (\d+) first step at ([\d.]+)", output)
    }
    died = {int(a): float(t) for a, t in re.findall(r"attempt (\d+) dies at ([\d.]+)", output)}
    gaps = [began[a + 1] - died[a] for a in died if a + 1 in began]
    worked = sum(1 for attempt in range(1, asked + 1) if attempt in began)
    middle = f"{statistics.median(gaps):.2f}" if gaps else "-"
    worst = f"{max(gaps):.2f}" if gaps else "-"
    finished = "yes" if "finished in attempt" in output else "no"
    return f"| {name} | {asked} | {worked} | {middle} | {worst} | {finished} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--torchrun-restarts", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    count = ["--nproc-per-node", str(options.ranks)]
    lines = [
        "| launcher | restarts asked | worked | death to first new step, median s | worst s "
        "| job finished | whole job, s |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as runs_dir:
        ours = [
            sys.executable, "-m", "harness", "run", "--runs-dir", runs_dir, *count,
            "--max-restarts", str(options.restarts), str(SCRIPT), str(options.restarts),
        ]  # fmt: skip
        output, seconds = run(ours, 60 + 10.0 * options.restarts, {})
        lines.append(row("harness", output, options.restarts, seconds))
        print(lines[-1], file=sys.stderr, flush=True)
    theirs = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", *count,
        "--max-restarts", str(options.torchrun_restarts), str(SCRIPT),
        str(options.torchrun_restarts),
    ]  # fmt: skip
    for name, extra in (
        ("torchrun", {}),
        ("torchrun, store not shared", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    ):
        output, seconds = run(theirs, 60 + 20.0 * options.torchrun_restarts, extra)
        lines.append(row(name, output, options.torchrun_restarts, seconds))
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(
        [
            "# Restarts of a Gloo job",
            "",
            f"`bench/restarts.py --restarts {options.restarts} --ranks {options.ranks} "
            f"--torchrun-restarts {options.torchrun_restarts}`, {os.cpu_count()} cores. Every "
            "attempt loses another rank at another step, by exit code 3 or SIGKILL.",
            "",
            *lines,
            "",
        ]
    )
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "restarts.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
