"""Launch to first step of a plain DDP script, beside torchrun in the same run; and its exits.

    .venv/bin/python bench/startup.py [--ranks 1,2,4,8] [--repeats 3] [--launches 50]

Writes a Markdown table to stdout and to bench/results/startup.md. Launches are interleaved, so
that whatever else the machine does falls on all alike. Trust the ratios, not the seconds.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "plain_ddp.py"
LAUNCH_LIMIT = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch: seconds to the first step and to the end (None: not seen within the limit)."""

    first_step: float | None
    end: float | None
    exit_code: int | None


def command(launcher: str, ranks: int, runs_dir: str) -> list[str]:
    count = ["--nproc-per-node", str(ranks)]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *count, str(SCRIPT)]
    extra = ["--no-zygote"] if launcher == "harness fresh" else []
    return [
        sys.executable, "-m", "harness", "run", "--runs-dir", runs_dir, *count, *extra, str(SCRIPT),
    ]  # fmt: skip


def launch(launcher: str, ranks: int) -> Launch:
    """Start the script once under `launcher` and watch it to its end."""
    with tempfile.TemporaryDirectory() as runs_dir:
        began = time.time()
        process = subprocess.Popen(
            command(launcher, ranks, runs_dir),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            output, _ = process.communicate(timeout=LAUNCH_LIMIT)
            end: float | None = time.time() - began
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
            end = None
    found = re.search(r"first step at ([\d.]+)", output)
    first = float(found[1]) - began if found else None
    return Launch(first_step=first, end=end, exit_code=process.returncode if end else None)


def median(values: list[float | None]) -> float | None:
    seen = [value for value in values if value is not None]
    return statistics.median(seen) if seen else None


def show(value: float | None, digits: int = 2) -> str:
    return "never" if value is None else f"{value:.{digits}f}"


def startup_table(rank_counts: list[int], repeats: int) -> list[str]:
    launchers = ["torchrun", "harness fresh", "harness zygote"]
    lines = [
        "| ranks | torchrun, s | harness fresh, s | harness zygote, s | fresh / torchrun "
        "| zygote / torchrun |",
        "|---|---|---|---|---|---|",
    ]
    for ranks in rank_counts:
        seen: dict[str, list[float | None]] = {name: [] for name in launchers}
        for _ in range(repeats):
            for name in launchers:
                seen[name].append(launch(name, ranks).first_step)
        middle = {name: median(values) for name, values in seen.items()}
        base = middle["torchrun"] or float("nan")
        ratios = [
            show(None if (value := middle[name]) is None else value / base)
            for name in launchers[1:]
        ]
        cells = [str(ranks), *(show(middle[name]) for name in launchers), *ratios]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def exit_table(launches: int, ranks: int, torchrun_launches: int) -> list[str]:
    lines = [
        "| launcher | launches | ended with 0 | ended otherwise | hung |",
        "|---|---|---|---|---|",
    ]
    for name, count in (
        ("torchrun", torchrun_launches),
        ("harness zygote", launches),
        ("harness fresh", torchrun_launches),
    ):
        codes = [launch(name, ranks).exit_code for _ in range(count)]
        good, hung = codes.count(0), codes.count(None)
        lines.append(f"| {name} | {count} | {good} | {count - good - hung} | {hung} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--launches", type=int, default=50, help="launches under the zygote")
    parser.add_argument("--torchrun-launches", type=int, default=12)
    parser.add_argument("--exit-ranks", type=int, default=4)
    options = parser.parse_args()
    rank_counts = [int(part) for part in options.ranks.split(",")]
    text = "\n".join(
        [
            "# Start-up: launch to first step of a plain DDP script",
            "",
            f"`bench/startup.py --ranks {options.ranks} --repeats {options.repeats} "
            f"--launches {options.launches} --torchrun-launches {options.torchrun_launches}`, "
            f"{os.cpu_count()} cores, medians, launchers interleaved. The zygote's own imports "
            "are inside its figure.",
            "",
            *startup_table(rank_counts, options.repeats),
            "",
            f"## Exits of the same script, {options.exit_ranks} ranks, "
            f"hung = not ended after {LAUNCH_LIMIT:.0f} s",
            "",
            *exit_table(options.launches, options.exit_ranks, options.torchrun_launches),
            "",
        ]
    )
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "startup.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
