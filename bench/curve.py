"""A thousand steps of the demo's model on real text, in one process: the loss as CSV and picture.

    .venv/bin/python bench/curve.py [--steps 1000] [--from FILE.csv]

Writes docs/img/curve.csv (step, loss, lr, grad_norm) and docs/img/curve.png. The picture needs
`pip install matplotlib`; `--from` draws one that is there already.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSV = ROOT / "docs" / "img" / "curve.csv"
FLAGS = "--dp 1 --tp 1 --pp 1 --micro-batches 1 --checkpoint-every 0 --warmup 50"


def trained(steps: int) -> list[list[str]]:
    """Rows of the CSV. Raises CalledProcessError when the training fails."""
    script, config = ROOT / "trainer" / "train.py", ROOT / "trainer" / "demo.toml"
    command = [sys.executable, str(script), "--config", str(config), *FLAGS.split()]
    command += ["--checkpoint-dir", "", "--steps", str(steps)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            words = line.split()
            if words[0] == "step":
                rows.append([words[1].split("/")[0], words[3], words[5], words[7]])
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return rows


def draw(file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with file.open(encoding="ascii") as lines:
        rows = list(csv.DictReader(lines))
    steps, losses = [int(r["step"]) for r in rows], [float(r["loss"]) for r in rows]
    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=110)
    axes.plot(steps, losses, linewidth=0.8)
    axes.set_xlabel("step (1,024 tokens each)")
    axes.set_ylabel("loss, nats per byte")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file.with_suffix(".png"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--from", dest="given", type=Path, help="a CSV to draw, nothing to train")
    options = parser.parse_args()
    file = options.given or CSV
    if options.given is None:
        rows = trained(options.steps)
        with file.open("w", encoding="ascii", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(
                [["step", "loss", "lr", "grad_norm"], *rows]
            )
    draw(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
