"""Kills of the controller, at random moments and amid incidents: what is lost?

    .venv/bin/python bench/controller_kills.py [--runs 10] [--kills 5] [--seed 0] [--no-results]

In every second run nothing else goes wrong: no step may be done twice and no attempt made. In the
others each attempt loses a rank by SIGKILL, and the controller dies within half a second after: the
verdict must be right and what is done again at most a checkpoint's interval. Each must end like the
undisturbed run, bit for bit, with no process, directory or shared memory left. Prints Markdown,
writes bench/results/controller_kills.md; exits 1 when anything was lost.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trained

from harness import events, journal, processes

HERE = Path(__file__).resolve().parent
_STEPS, _EVERY, _RANKS = 180, 20, 2
_FLAGS = f"--checkpoint-every {_EVERY} --steps {_STEPS}"
_LONGEST_GAP, _LONGEST_DELAY = 2.0, 0.5
_RUN_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: kills that struck, attempts made, steps done again, what is wrong, in words."""

    kills: int
    attempts: int
    done_again: int
    wrong: list[str]


def controllers(run_dir: Path, launcher: int) -> Iterator[int]:
    """The controller of the moment, each once, as soon as it serves; ends with the run."""
    known = 0
    while running(launcher):
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((run_dir / "controller.json").read_text())["pid"])
            if pid != known:
                known = pid
                yield pid
        time.sleep(0.002)


def running(launcher: int) -> bool:
    return os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def deaths(run_dir: Path, at: int) -> bool:
    """Whether an attempt of number `at` has lost a worker."""
    with contextlib.suppress(OSError):
        for record in journal.read(run_dir / journal.FILE_NAME):
            if isinstance(record.event, events.WorkerExited) and record.stamp.attempt >= at:
                return True
    return False


def strike(run_dir: Path, launcher: int, kills: int, amid: bool, draw: random.Random) -> int:
    """SIGKILL `kills` controllers one after the other; how many were hit."""
    hit = 0
    for pid in controllers(run_dir, launcher):
        while amid and running(launcher) and not deaths(run_dir, hit):
            time.sleep(0.002)
        longest = _LONGEST_DELAY if amid else _LONGEST_GAP
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            if not select.select([descriptor], [], [], draw.uniform(0.0, longest))[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                hit += 1
            os.close(descriptor)
        if hit == kills:
            break
    return hit


def one(folder: Path, calm: trained.Trained, kills: int, amid: bool, seed: str) -> Outcome:
    draw = random.Random(seed)
    gap = _STEPS // (kills + 1)
    plan = [(gap * (n + 1), draw.randrange(_RANKS), 0.5) for n in range(kills if amid else 0)]
    shared = set(os.listdir("/dev/shm"))
    with environment("TMPDIR", folder / "tmp"):
        (folder / "tmp").mkdir(parents=True)
        launcher = trained.start(folder, _RANKS, _FLAGS, plan)
    hit = strike(folder / "runs" / trained.RUN, launcher.pid, kills, amid, draw)
    below = processes.descendants(launcher.pid)
    ran = trained.ended(launcher, folder, _RUN_SECONDS)
    wrong = trained.differences(calm, ran) + trained.misjudged(ran.state, plan)
    wrong += [f"process {pid} is left" for pid in below if Path(f"/proc/{pid}").exists()]
    left = [name for name in os.listdir(folder / "tmp") if name.startswith("harness")]
    wrong += [f"{name} is left" for name in left]
    wrong += [f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - shared]
    attempts = len(ran.state.attempts)
    if attempts != 1 + len(plan):
        wrong.append(f"{attempts} attempts")
    if ran.done_again > (_EVERY + 1) * len(plan):
        wrong.append(f"{ran.done_again} steps done again")
    return Outcome(kills=hit, attempts=attempts, done_again=ran.done_again, wrong=wrong)


@contextlib.contextmanager
def environment(name: str, value: Path) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def campaign(runs: int, kills: int, seed: int, folder: Path) -> tuple[list[str], bool]:
    """Rows of the table, and whether nothing was lost."""
    calm = trained.ended(
        trained.start(folder / "calm", _RANKS, _FLAGS), folder / "calm", _RUN_SECONDS
    )
    rows, total, good = [], 0, True
    for number in range(runs):
        amid = number % 2 == 1
        done = one(folder / str(number), calm, kills, amid, f"{seed} {number}")
        total += done.kills
        good = good and not done.wrong
        what = "each a little after a rank's" if amid else "nothing else goes wrong"
        said = "**" + "; ".join(done.wrong) + "**" if done.wrong else "identical, nothing left"
        cells = [number + 1, what, done.kills, done.attempts, done.done_again, said]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
        print(rows[-1], file=sys.stderr, flush=True)
    return [*rows, f"| all | | {total} | | | {'nothing lost' if good else '**losses**'} |"], good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--kills", type=int, default=5, help="in each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder to leave the runs in")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harness-kills-") as name:
        folder = options.keep or Path(name)
        rows, good = campaign(options.runs, options.kills, options.seed, folder)
    text = "\n".join(
        [
            "# The controller killed, again and again",
            "",
            f"`bench/controller_kills.py --runs {options.runs} --kills {options.kills} --seed "
            f"{options.seed}`, {os.cpu_count()} cores; the reference trainer on {_RANKS} ranks, "
            f"{_STEPS} steps, a checkpoint every {_EVERY}. Compared bit for bit with the "
            "undisturbed run: loss and gradient norm of every step of every rank, the last "
            "checkpoint. Left over may be no process, no directory, no shared memory.",
            "",
            "| run | kills of the controller | struck | attempts | steps done again | outcome |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    if not options.no_results:
        (HERE / "results" / "controller_kills.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
