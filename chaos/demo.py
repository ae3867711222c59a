"""The demo: train, kill a rank on purpose, recover; train again undisturbed; compare.

`python -m harness.chaos.demo`, or `make demo`. What follows `--` goes to the trainer. All that it
writes is under demo-runs/, made anew each time.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import journal
from harness.state import RunState, fold_all

FOLDER = Path("demo-runs")
KILLED = "killed"
UNDISTURBED = "undisturbed"
TRAINER = Path("trainer/train.py")
CONFIG = Path("trainer/demo.toml")
HARNESS = [sys.executable, "-m", "harness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who is killed when; `trainer_args` are handed on."""

    ranks: int
    kill_rank: int
    kill_step: int
    trainer_args: tuple[str, ...]


def train(plan: Plan, name: str) -> "subprocess.Popen[bytes]":
    """Start `harness run` on the trainer; its output is ours."""
    return subprocess.Popen(
        [
            *(*HARNESS, "run", "--run-name", name, "--runs-dir", str(FOLDER)),
            *("--chaos-allowed", "--nproc-per-node", str(plan.ranks)),
            *(str(TRAINER), "--config", str(CONFIG)),
            *("--checkpoint-dir", str(checkpoints(name)), *plan.trainer_args),
        ]
    )


def checkpoints(name: str) -> Path:
    return FOLDER / f"checkpoints-{name}"


def inject(plan: Plan, run: "subprocess.Popen[bytes]") -> None:
    """Ask for the kill as soon as there are ranks to kill."""
    command = [*HARNESS, "inject", "kill", "--rank", str(plan.kill_rank)]
    command += ["--step", str(plan.kill_step), "--runs-dir", str(FOLDER), KILLED]
    events = FOLDER / KILLED / journal.FILE_NAME
    while not events.exists() or b'"WorkerStarted"' not in events.read_bytes():
        if run.poll() is not None:
            return
        time.sleep(0.05)
    say(f"$ harness {' '.join(command[3:])}")
    if subprocess.run(command, check=False).returncode != 0:
        run.terminate()


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def state_of(name: str) -> RunState:
    return fold_all(journal.read(FOLDER / name / journal.FILE_NAME))


def summary(killed: RunState, undisturbed: RunState) -> list[str]:
    """What the two journals say, one fact a line. Raises ValueError when one is missing."""
    if not killed.faults or not killed.incidents or len(killed.attempts) < 2:
        raise ValueError("the journal shows no fault, or no recovery from it")
    fault, incident, after = killed.faults[0], killed.incidents[0], killed.attempts[-1]
    verdict = incident.verdict
    detected = (incident.detected_ns - fault.injected_ns) / 1e9
    recovered = (after.first_step_ns - fault.injected_ns) / 1e9
    where = " ".join(f"{axis}{value}" for axis, value in verdict.coordinates.items())
    return [
        f"attempts              {len(killed.attempts)}",
        f"verdict               {verdict.verdict}, rank {_ranks(verdict.first_failing)} ({where})",
        f"detected and judged   {detected:.2f} s after the kill",
        f"first new step        {recovered:.2f} s after the kill",
        f"steps lost            {incident.lost_steps}",
        f"final loss            {_loss(killed)} with the kill, {_loss(undisturbed)} without",
    ]


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def _loss(state: RunState) -> str:
    losses = [rank.loss for rank in state.attempts[-1].ranks.values() if rank.loss is not None]
    return f"{losses[0]:.4f}" if losses else "not reported"


def compare() -> int:
    """Compare the final parameters bit by bit; 0 when they are equal."""
    paths = [str(checkpoints(name)) for name in (KILLED, UNDISTURBED)]
    return subprocess.run(
        [sys.executable, "-m", "harness.trainer.compare", *paths], check=False
    ).returncode


def demo(plan: Plan) -> int:
    """The whole demo; 0 when all went as promised."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    began = time.monotonic()
    say(f"1 of 2: {plan.ranks} ranks; rank {plan.kill_rank} dies after step {plan.kill_step}")
    run = train(plan, KILLED)
    with interruptible(run):
        inject(plan, run)
        if run.wait() != 0:
            return failed("the disturbed run", run.returncode)
    say("2 of 2: the same without the kill")
    run = train(plan, UNDISTURBED)
    with interruptible(run):
        if run.wait() != 0:
            return failed("the undisturbed run", run.returncode)
    say(f"summary, after {time.monotonic() - began:.0f} s")
    print("\n".join(summary(state_of(KILLED), state_of(UNDISTURBED))), flush=True)
    if compare() != 0:
        return failed("the comparison", 1)
    command = os.path.relpath(Path(sys.executable).with_name("harness"))
    print(f"\nlook closer: {command} report {FOLDER / KILLED}", flush=True)
    return 0


@contextlib.contextmanager
def interruptible(run: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Whatever happens here, `run` has ended afterwards. Ctrl-C reaches it by itself."""
    try:
        yield
    except BaseException:
        run.terminate()
        raise
    finally:
        run.wait()


def failed(what: str, code: int) -> int:
    print(f"\nerror: {what} failed (exit code {code})", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.chaos.demo", description=__doc__)
    parser.add_argument("--nproc-per-node", type=int, default=8, help="ranks [8]")
    parser.add_argument("--kill-rank", type=int, default=5, help="who is killed [5]")
    parser.add_argument("--kill-step", type=int, default=25, help="after which step [25]")
    parser.add_argument("trainer_args", nargs="*", help="for the trainer, after --")
    given = parser.parse_args()
    plan = Plan(
        ranks=given.nproc_per_node,
        kill_rank=given.kill_rank,
        kill_step=given.kill_step,
        trainer_args=tuple(given.trainer_args),
    )
    for path in (TRAINER, CONFIG):
        if not path.exists():
            print(f"error: {path} is not here\nhelp: run it in the checkout", file=sys.stderr)
            return 2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        return demo(plan)
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
