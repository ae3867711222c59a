"""From the moment a job goes wrong to the verdict, for every kind of hang, with default settings.

    .venv/bin/python bench/hangs.py [--times 3] [--ranks 4] [--only PATTERN] [--wide 8]

bench/scripts/hang_kinds.py makes steps of 50 ms and writes down when it goes wrong; the verdict's
time is `detected` of the first incident in `harness report --json`. What the looks at all ranks
took (EvidenceComplete in the journal) is measured apart, on a job of `--wide` ranks of which one
is stopped, holds the interpreter's lock, or waits for a collective that does not come. Prints
Markdown; exits 1 when a verdict was wrong or missing.
"""

import argparse
import fnmatch
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import running

from harness import events, journal

SCRIPT = Path(__file__).resolve().parent / "scripts" / "hang_kinds.py"
_DESYNC, _STUCK = ("collective_mismatch",), ("rank_stuck_outside_collective",)
KINDS: dict[str, tuple[str, tuple[str, ...], list[int]]] = {
    "skipped": ("a collective skipped by one rank", _DESYNC, [2]),
    "extra": ("a collective called by one rank alone", _DESYNC, [2]),
    "other": ("another collective on one rank", _DESYNC, [2]),
    "uneven": ("a rank out of data, in a barrier", _DESYNC, [2]),
    "p2p": ("two ranks that both receive", ("p2p_deadlock",), [1, 2]),
    "group": ("a group that one rank does not make", ("group_mismatch",), [2]),
    "loop": ("an endless loop", _STUCK, [2]),
    "sleep": ("a sleep in the user's code", _STUCK, [2]),
    "lock": ("a lock taken twice", _STUCK, [2]),
    "pipe": ("a read that gets nothing", ("rank_stuck_in_io",), [2]),
    "gil": ("a C call that keeps the GIL", _STUCK, [2]),
    "frozen": ("a stopped process", ("rank_frozen",), [2]),
    "loader": ("a data loader's worker that hangs", ("dataloader_stuck",), [2]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run: seconds from onset to verdict, None without one; seconds of each look."""

    said: str
    right: bool
    seconds: float | None
    looks: tuple[float, ...]


def judged(kind: str, ranks: int) -> Judged:
    _, classes, culprits = KINDS[kind]
    with running.run(SCRIPT, how(kind, ranks)) as ran:
        onset = ran.here / "onset"
        looks = tuple(
            record.event.seconds
            for record in journal.read(ran.journal)
            if isinstance(record.event, events.EvidenceComplete)
        )
        if not ran.incidents or not onset.exists():
            return Judged(said=f"nothing, exit {ran.codes}", right=False, seconds=None, looks=looks)
        first = ran.incidents[0]
        detected = datetime.fromisoformat(first["detected"].replace("Z", "+00:00")).timestamp()
        return Judged(
            said=f"{first['class']} {first['first_failing']}",
            right=first["class"] in classes and sorted(first["first_failing"]) == culprits,
            seconds=detected - float(onset.read_text()),
            looks=looks,
        )


def how(kind: str, ranks: int) -> running.Launch:
    return running.Launch(
        nproc=ranks, args=("--max-restarts", "0"), script_args=(kind, "onset"), timeout=60
    )


def onset_to_verdict(kinds: Iterable[str], ranks: int, times: int) -> bool:
    """Print the table; whether every verdict was right."""
    print("| kind | right | onset to verdict, median s | worst s | said |")
    print("|---|---|---|---|---|", flush=True)
    everything: list[float] = []
    all_right = True
    for kind in kinds:
        runs = [judged(kind, ranks) for _ in range(times)]
        seconds = [one.seconds for one in runs if one.seconds is not None]
        everything += seconds
        right = sum(one.right for one in runs)
        all_right = all_right and right == times
        said = ", ".join(sorted({one.said for one in runs}))
        print(f"| {KINDS[kind][0]} | {right} of {times} | {spread(seconds)} | {said} |", flush=True)
    print(f"| all | | {spread(everything)} | |\n", flush=True)
    return all_right


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} | {max(seconds):.2f}" if seconds else "- | -"


def evidence(kinds: Iterable[str], ranks: int, times: int) -> None:
    print("| kind | ranks | looks | evidence, median s | worst s | onset to verdict, s |")
    print("|---|---|---|---|---|---|", flush=True)
    for kind in kinds:
        runs = [judged(kind, ranks) for _ in range(times)]
        looks = [look for one in runs for look in one.looks]
        verdicts = ", ".join("-" if one.seconds is None else f"{one.seconds:.2f}" for one in runs)
        print(
            f"| {KINDS[kind][0]} | {ranks} | {len(looks)} | {spread(looks)} | {verdicts} |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=3, help="how often each kind is run")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="*", help="pattern for the kinds' names")
    parser.add_argument("--wide", type=int, default=8, help="ranks of the evidence's jobs; 0: none")
    options = parser.parse_args()
    if options.ranks < 3:
        parser.error("--ranks: the culprit is rank 2, so at least 3")
    kinds = [kind for kind in KINDS if fnmatch.fnmatch(kind, options.only)]
    print(
        f"# Hangs: from onset to verdict\n\n`bench/hangs.py --times {options.times} --ranks "
        f"{options.ranks}`, {os.cpu_count()} cores, steps of 50 ms, default settings. A verdict is "
        "right when class and ranks are.\n",
        flush=True,
    )
    right = onset_to_verdict(kinds, options.ranks, options.times)
    if options.wide:
        wide = [kind for kind in ("frozen", "gil", "skipped") if kind in kinds]
        evidence(wide, options.wide, options.times)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
