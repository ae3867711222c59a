"""Time to N steps under a seeded schedule of faults: harness against torchrun.

    .venv/bin/python bench/race.py [--steps 600] [--faults 6] [--ranks 4] [--seed 0] [--no-results]

Both run bench/scripts/racing.py with the same schedule: a seeded rank is killed by SIGKILL, raises
or leaves at a seeded step, each once. torchrun gets the restarts it needs and
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its Gloo jobs do not come back at all. The ETTR
is the time that the steps take without a fault and without a start, as a share of the whole; for
harness also what its own books say. Prints Markdown, writes bench/results/race.md.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import running

from harness.portholder import free_port

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "racing.py"
KINDS = ("kill", "raise", "exit")
Schedule = list[tuple[int, int, str]]
"""Step, rank, what happens; by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """One run. `step_seconds`: median of a step; `steps`: taken in all, those done again too."""

    name: str
    code: int
    seconds: float
    first: float
    step_seconds: float
    steps: int
    told: float | None


def schedule(steps: int, faults: int, ranks: int, seed: int) -> Schedule:
    """Never two at one step, none in the first or last tenth."""
    draw = random.Random(seed)
    chosen = sorted(draw.sample(range(steps // 10, steps - steps // 10), faults))
    return [(step, draw.randrange(ranks), draw.choice(KINDS)) for step in chosen]


def race(name: str, command: Sequence[str], plan: Schedule, steps: int, folder: Path) -> Raced:
    """Run the script under `command` to its end."""
    folder.mkdir()
    arguments = [str(SCRIPT), str(folder), str(steps), json.dumps(plan)]
    began = time.time()
    with open(folder / "output", "wb") as output:
        code = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    done = [float(line) for line in (folder / "steps").read_text().split()]
    gaps = [after - before for before, after in itertools.pairwise(done)]
    return Raced(
        name=name,
        code=code,
        seconds=done[-1] - began,
        first=done[0] - began,
        step_seconds=statistics.median(gaps),
        steps=len(done),
        told=told(folder),
    )


def told(folder: Path) -> float | None:
    """The ETTR in the books of a run of ours."""
    if not (folder / "runs").exists():
        return None
    report = subprocess.run(
        [sys.executable, "-m", "harness", "report", "--json", "--runs-dir", str(folder / "runs")],
        capture_output=True,
        text=True,
        check=True,
    )
    ettr: float | None = json.loads(report.stdout)["ledger"]["ettr"]
    return ettr


def row(raced: Raced, steps: int, faults: int) -> str:
    ettr = steps * raced.step_seconds / raced.seconds
    per_fault = (raced.seconds - raced.first - steps * raced.step_seconds) / max(faults, 1)
    cells = [
        raced.name,
        f"{raced.seconds:.1f}",
        f"{raced.first:.1f}",
        f"{1000 * raced.step_seconds:.0f}",
        raced.steps - steps,
        f"{per_fault:.2f}",
        f"{100 * ettr:.0f} %",
        "-" if raced.told is None else f"{100 * raced.told:.0f} %",
        "yes" if raced.code == 0 else f"**no, exit code {raced.code}**",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    plan = schedule(options.steps, options.faults, options.ranks, options.seed)
    count = ["--nproc-per-node", str(options.ranks), "--max-restarts", str(options.faults)]
    elastic = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    commands = {
        "harness": [sys.executable, "-m", "harness", "run", "--runs-dir", "runs", *count],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", *count, *elastic],
    }
    rows = []
    good = True
    with tempfile.TemporaryDirectory(prefix="harness-race-") as name:
        for who, command in commands.items():
            raced = race(who, command, plan, options.steps, Path(name) / who)
            good = good and raced.code == 0
            rows.append(row(raced, options.steps, options.faults))
            print(rows[-1], file=sys.stderr, flush=True)
    shown = ", ".join(f"{what} of rank {rank} at {step}" for step, rank, what in plan)
    text = "\n".join(
        [
            f"# Time to {options.steps} steps",
            "",
            f"`bench/race.py --steps {options.steps} --faults {options.faults} --ranks "
            f"{options.ranks} --seed {options.seed}`, {os.cpu_count()} cores. Faults: {shown}. A "
            "checkpoint every 20 steps.",
            "",
            "| launcher | time to the last step, s | of it to the first, s | a step, ms "
            "| steps done again | a fault costs, s | ETTR | ETTR by its own books | finished |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "A fault costs what it takes beyond the start and the steps: detection, verdict, "
            f"restart, steps done again. {running.load_text()}",
            "",
        ]
    )
    if not options.no_results:
        (HERE / "results" / "race.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
