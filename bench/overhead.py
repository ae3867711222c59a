"""What Harness costs: a step beside torchrun, and what agent, controller and launcher take.

    .venv/bin/python bench/overhead.py [--pairs 3] [--ranks 2] [--watched 8] [--no-results]

One DDP script (bench/scripts/paired.py) with steps of several lengths, under torchrun and under
`harness run` in turn. Then so many `--watched` ranks under `harness run`, and the CPU and memory of
Harness's own processes while they idle and while they train, past the first minute. Prints
Markdown, writes bench/results/overhead.md; exits 1 where the agent of idle ranks takes more than
40 MB (PSS) or 1 % of a core.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import running

from harness import processes
from harness.policy import Policy

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "paired.py"
LENGTHS = {2: 600, 20: 250, 100: 80}
"""Milliseconds of a step's sleep, and steps."""
IDLE = "nothing: they sleep, 20 s in a step"
PACES = {IDLE: 20_000, "2 steps a second": 500, "as many steps as they can": 20}
"""Milliseconds of a step's sleep. Longer ones are told of as what they would be: ranks that stand
still between two collectives."""
_SETTLE_SECONDS, _WATCH_SECONDS = 65.0, 20.0
"""In its first minute an attempt is looked at twice as often as later."""
_MOST_MEMORY, _MOST_CPU = 40e6, 0.01
_TICKS = os.sysconf("SC_CLK_TCK")
BARE = "harness without checks of numbers"
PARTS = ("launcher", "agent", "controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one process: part of a core; bytes resident (RSS), the same with every page divided by
    the processes that have it (PSS), and those that no other process has (USS)."""

    cpu: float
    resident: int
    share: int
    own: int


def command(who: str, ranks: int) -> list[str]:
    if who == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    else:
        start = [sys.executable, "-m", "harness", "run", "--run-name", "paired"]
    if who == BARE:
        start += ["--digests", "0", "--audit-share", "0"]
    return [*start, "--nproc-per-node", str(ranks), str(SCRIPT)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def steps(who: str, ranks: int, length: int, count: int) -> tuple[float, float]:
    """Median seconds of a step, and processor seconds of rank 0 a step."""
    with tempfile.TemporaryDirectory(prefix="harness-paired-") as name:
        done = subprocess.run(
            [*command(who, ranks), str(count), str(length)],
            cwd=name,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{who} ended with {done.returncode}: {done.stderr[-400:]}")
        found = json.loads((Path(name) / "steps.json").read_text())
    return statistics.median(found["seconds"]), found["cpu"]


def paired(ranks: int, pairs: int) -> list[str]:
    """A row for each length."""
    rows = []
    systems = ("torchrun", "harness", BARE)
    for length, count in LENGTHS.items():
        seen: dict[str, list[tuple[float, float]]] = {who: [] for who in systems}
        for turn in range(pairs):
            for place in range(len(systems)):
                who = systems[(turn + place) % len(systems)]
                seen[who].append(steps(who, ranks, length, count))
        off, on = seen["torchrun"], seen["harness"]
        step = statistics.median(each[0] for each in off)
        walls = [a[0] / b[0] for a, b in zip(on, off, strict=True)]
        cells = [
            f"{1e3 * step:.1f}",
            f"{statistics.median(walls):.3f}",
            f"{min(walls):.3f} to {max(walls):.3f}",
            f"{1e3 * statistics.median(each[1] for each in off):.2f}",
            more(on, off, step),
            more(seen[BARE], off, step),
        ]
        rows.append(f"| {length} | " + " | ".join(cells) + " |")
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def more(on: Sequence[tuple[float, float]], off: Sequence[tuple[float, float]], step: float) -> str:
    """Processor time of a step beyond torchrun's, and what part of `step` seconds that is."""
    extra = statistics.median(a[1] - b[1] for a, b in zip(on, off, strict=True))
    return f"{1e6 * extra:+.0f} µs, {extra / step:+.2%}"


def watched(ranks: int, length: int, seconds: float) -> dict[str, Cost]:
    """Harness's own processes while `ranks` make steps of `length` ms."""
    with tempfile.TemporaryDirectory(prefix="harness-paired-") as name:
        launcher = subprocess.Popen(
            [*command("harness", ranks), "1000000", str(length)],
            cwd=name,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            pids = until_training(launcher, Path(name), ranks)
            time.sleep(_SETTLE_SECONDS)
            if launcher.poll() is not None:
                raise RuntimeError(f"the run has ended: {launcher.communicate()[1][-2000:]}")
            before = {part: used(pid) for part, pid in pids.items()}
            began = time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - began
            return {
                part: Cost(
                    cpu=(used(pid) - before[part]) / passed,
                    resident=memory(pid, "Rss:"),
                    share=memory(pid, "Pss:"),
                    own=memory(pid, "Private_Clean:") + memory(pid, "Private_Dirty:"),
                )
                for part, pid in pids.items()
            }
        finally:
            launcher.terminate()
            launcher.communicate(timeout=90)


def until_training(launcher: "subprocess.Popen[str]", here: Path, ranks: int) -> dict[str, int]:
    """The processes by their part, once all ranks have started."""
    journal = here / "runs" / "paired" / "journal.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and launcher.poll() is None:
        told = journal.read_bytes() if journal.exists() else b""
        if told.count(b'"type":"WorkerStarted"') >= ranks:
            break
        time.sleep(0.2)
    found = {"launcher": launcher.pid}
    for pid in processes.descendants(launcher.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if parent(pid) == launcher.pid:
                found |= {part: pid for part in PARTS if f"harness.{part}" in words}
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int, word: str) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition(f"\n{word}")[2].split()[0]) << 10


def rows_of(name: str, costs: dict[str, Cost]) -> list[str]:
    return [
        f"| {name} | {part} | {cost.cpu:.2%} | {cost.resident / 1e6:.1f} "
        f"| {cost.share / 1e6:.1f} | {cost.own / 1e6:.1f} |"
        for part, cost in costs.items()
    ]


def report(pairs: Sequence[str], costs: Sequence[str], options: argparse.Namespace) -> str:
    return "\n".join(
        [
            "# What Harness costs",
            "",
            f"`bench/overhead.py --pairs {options.pairs} --ranks {options.ranks} --watched "
            f"{options.watched}`, {os.cpu_count()} cores. {running.load_text()}",
            "",
            f"A step of DDP on {options.ranks} ranks, under torchrun and under harness in turn, "
            f"{options.pairs} pairs. Wall time says little on a busy machine; processor time is "
            "that of all threads of rank 0. Checks of numbers may take as much of a step as they "
            f"are given, `--digest-share` {Policy().digest_share:.1%} and `--audit-share` "
            f"{Policy().audit_share:.1%} each, and do in the first minutes; without them it is the "
            "recorder alone.",
            "",
            "| sleep in a step, ms | step under torchrun, ms | harness / torchrun, median | of "
            "pairs | CPU a step, torchrun, ms | more under harness, of the step | without checks "
            "of numbers |",
            "|---|---|---|---|---|---|---|",
            *pairs,
            "",
            f"Harness's own processes beside {options.watched} ranks, "
            f"{_SETTLE_SECONDS:.0f} s after these have started. What is resident holds pages of "
            "Python and of libraries that other processes have as well: PSS has of each page the "
            "part that falls to one of them, and is what the process adds to the node; USS is what "
            "would be free without it.",
            "",
            "| ranks do | process | of a core | resident (RSS), MB | shared pages by those who "
            "share them (PSS), MB | of its own alone (USS), MB |",
            "|---|---|---|---|---|---|",
            *costs,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--watched", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=_WATCH_SECONDS)
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    costs, good = [], True
    for name, length in PACES.items():
        found = watched(options.watched, length, options.seconds)
        costs += rows_of(name, found)
        print("\n".join(rows_of(name, found)), file=sys.stderr, flush=True)
        if name == IDLE:
            agent = found["agent"]
            good = agent.share <= _MOST_MEMORY and agent.cpu <= _MOST_CPU
    text = report(paired(options.ranks, options.pairs), costs, options)
    if not options.no_results:
        (HERE / "results" / "overhead.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
