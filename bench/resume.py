"""Is a run that is killed at every step the same as one that is not? On every kind of parallelism.

    .venv/bin/python bench/resume.py [--kills 20] [--seed 0] [--only ddp,tp] [--no-results]

For each layout the reference trainer runs twice: undisturbed, and with a seeded rank killed by
SIGKILL at a seeded moment of every one of `--kills` consecutive steps, each in the attempt that the
kill before it made necessary. The two must agree bit for bit: loss and gradient norm of every step
on every rank, those that were done again included, and every tensor of the last checkpoint,
optimizer state included. Prints Markdown, writes bench/results/resume.md; exits 1 on a difference.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import trained

HERE = Path(__file__).resolve().parent
LAYOUTS: dict[str, tuple[int, str, str]] = {
    "ddp": (2, "data parallel, replicated", ""),
    "zero3": (2, "data parallel, sharded (FSDP2, ZeRO-3)", "--dp-shard 2"),
    "accumulation": (2, "FSDP2, micro-batches accumulated", "--dp-shard 2 --micro-batches 2"),
    "hsdp": (4, "HSDP: 2 replicas of 2 shards", "--dp-shard 2"),
    "tp": (2, "tensor and sequence parallel", "--tp 2"),
    "pp": (2, "pipeline, 1F1B", "--pp 2 --micro-batches 2"),
    "tp-zero3": (4, "tensor parallel x FSDP2", "--tp 2 --dp-shard 2"),
    "pp-zero3": (4, "pipeline x FSDP2", "--pp 2 --micro-batches 2 --dp-shard 2"),
    "pp-tp": (4, "pipeline x tensor parallel", "--pp 2 --micro-batches 2 --tp 2"),
    "3d": (8, "pipeline x replicated x tensor", "--pp 2 --micro-batches 2 --tp 2"),
    "3d-zero3": (8, "pipeline x FSDP2 x tensor", "--pp 2 --micro-batches 2 --tp 2 --dp-shard 2"),
}
"""Name: ranks, what it is, flags of the trainer."""
_FIRST_KILL = 2
_STEPS_AFTER = 12
"""More than the last kill may be late by, where another step takes far longer than that one."""
_LAUNCH_SECONDS, _ATTEMPT_SECONDS = 60, 120


def seeded(layout: str, ranks: int, kills: int, seed: int) -> trained.Kills:
    """Every step once, in the attempt of that number."""
    draw = random.Random(f"{seed} {layout}")
    steps = range(_FIRST_KILL, _FIRST_KILL + kills)
    return [(step, draw.randrange(ranks), round(draw.uniform(0.0, 1.2), 3)) for step in steps]


def row(layout: str, kills: int, seed: int, keep: Path | None) -> tuple[str, bool]:
    """One row of the table, and whether all was equal."""
    ranks, what, flags = LAYOUTS[layout]
    plan = seeded(layout, ranks, kills, seed)
    flags += f" --checkpoint-every 2 --steps {_FIRST_KILL + kills + _STEPS_AFTER - 1}"
    limit = _LAUNCH_SECONDS + _ATTEMPT_SECONDS * (1 + kills)
    with tempfile.TemporaryDirectory(prefix="harness-resume-") as name:
        folder = Path(name) if keep is None else keep / layout
        calm, killed = folder / "calm", folder / "killed"
        before = trained.ended(trained.start(calm, ranks, flags), calm, limit)
        began = time.monotonic()
        after = trained.ended(trained.start(killed, ranks, flags, plan), killed, limit)
        seconds = time.monotonic() - began
        wrong = trained.differences(before, after) + trained.misjudged(after.state, plan)
    verdict = "**" + "; ".join(wrong) + "**" if wrong else "identical"
    cells = [what, ranks, len(after.state.incidents), after.done_again, f"{seconds:.0f}", verdict]
    return "| " + " | ".join(map(str, cells)) + " |", not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(LAYOUTS), help="layouts, with commas between")
    parser.add_argument("--keep", type=Path, help="folder to leave runs and checkpoints in")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    rows, good = [], True
    for layout in options.only.split(","):
        line, equal = row(layout, options.kills, options.seed, options.keep)
        rows.append(line)
        good = good and equal
        print(line, file=sys.stderr, flush=True)
        if not options.no_results:  # what is known so far: the whole takes its time
            (HERE / "results" / "resume.md").write_text(report(options, rows), encoding="utf-8")
    print(report(options, rows))
    return 0 if good else 1


def report(options: argparse.Namespace, rows: list[str]) -> str:
    return "\n".join(
        [
            "# Killed at every step, and the same in the end",
            "",
            f"`bench/resume.py --kills {options.kills} --seed {options.seed}`, {os.cpu_count()} "
            "cores. A seeded rank gets SIGKILL at a seeded moment of each of "
            f"{options.kills} consecutive steps; a checkpoint is written every two, in the "
            "background. Identical: loss and gradient norm of every step on every rank, those done "
            "again included, and all tensors of the last checkpoint, bit for bit; and every kill "
            "was judged as the kill of that rank.",
            "",
            "| layout | ranks | kills | steps done again | seconds | against the undisturbed run |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
