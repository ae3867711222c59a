"""What digests and the ranks' checks of their own numbers cost a step, with default settings:

    .venv/bin/python bench/sdc_overhead.py [--steps 3840] [--window 128]

One DDP training of two ranks on CPUs under `harness run`; Harness looks in every other window of
steps, and a window is compared with the one before it. A window holds several looks. Wall time says
little on a busy machine: the load is printed, and the processor time of rank 0's main thread beside
it; last, how much of a step the main thread has spent within what looks, by its own count of
processor time, which no difference of two windows blurs.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import running

from harness import codec
from harness import events as e

SCRIPT = Path(__file__).parent / "scripts" / "overhead.py"
_SETTLING = 1
"""Pairs that are not counted: plans are made, strides are found."""


def ratios(windows: list[dict[str, Any]], what: str) -> list[float]:
    """Of each pair, how much more the window with looks took."""
    pairs = zip(windows[::2], windows[1::2], strict=False)
    return [on[what] / off[what] - 1 for off, on in pairs][_SETTLING:]


def looks(journal: Path) -> int:
    """Different looks that came to the journal."""
    seen = set()
    for line in journal.read_bytes().splitlines()[1:]:
        event = codec.decode(line).event
        if isinstance(event, e.DigestsRead):
            seen.update((row.part, row.count) for row in event.rows)
    return len(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=3840)
    parser.add_argument("--window", type=int, default=128)
    asked = parser.parse_args()
    before = os.getloadavg()[0]
    how = running.Launch(nproc=2, script_args=(str(asked.steps), str(asked.window)), timeout=3600)
    with running.run(SCRIPT, how) as ran:
        if not ran.at_peace:
            print(f"the run went wrong: codes {ran.codes}, {ran.incidents}", file=sys.stderr)
            return 1
        found = json.loads((ran.here / "overhead.json").read_text())
        made = looks(ran.journal)
    windows = found["windows"]
    print(
        f"{found['parameters'] / 1e6:.1f} M parameters, 2 ranks, {asked.steps} steps in windows of"
        f" {asked.window}; {made} looks; load average {before:.1f} before,"
        f" {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores\n"
    )
    print("| | ms a step, off | more with looks, median | quartiles |\n|---|---|---|---|")
    for what in ("wall", "cpu"):
        off = statistics.median(each[what] for each in windows if not each["on"])
        low, middle, high = statistics.quantiles(ratios(windows, what), n=4)
        print(f"| {what} | {off * 1e3:.1f} | {middle:+.2%} | {low:+.2%} and {high:+.2%} |")
    step = statistics.median(each["wall"] for each in windows if not each["on"])
    counted = [each["within"] / step for each in windows if each["on"]][_SETTLING:]
    low, middle, high = statistics.quantiles(counted, n=4)
    print(f"| within them | {step * 1e3:.1f} | {middle:+.2%} | {low:+.2%} and {high:+.2%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
