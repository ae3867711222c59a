"""All of Harness and its trainer that fits on one GPU, in under six minutes: `make gpu-check`.

    python scripts/gpu_check.py [--device cpu] [--only PART,PART] [--list]

NCCL with one rank, several ranks that share the GPU over Gloo, bf16 and fp8, every technique's
numbers against one process in double precision, a kill and the same end, digests, and what a
training prints of itself. Each part is a process of its own with a limit; what it said is in
runs/gpu-check/. Exit code 0: all parts are right, or there is no GPU here; 1: one is not.
With --device cpu the same parts run small and without a GPU, which proves the check and no GPU.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import journal
from harness.errors import HarnessError
from harness.observations import DigestsRead
from harness.placement import count_gpus
from harness.state import RunState, fold

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("runs") / "gpu-check"
SECONDS = 350
"""For all parts together."""
ENVIRON = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HARNESS_DIGEST_SHARE": "0.5"}
"""Digests take what they need: these trainings are over before a share of a hundredth adds up."""
PATIENCE = {"cuda": 1, "cpu": 10}
"""Times the limits: a CPU is promised nothing, and may be busy with other work."""
SIZES = {
    "cuda": "--d-model 1024 --layers 8 --heads 16 --seq-len 1024 --steps 40 --lr 6e-4",
    "cpu": "--d-model 64 --layers 2 --heads 4 --seq-len 64 --steps 12",
}
SHARED = {
    "cuda": "--d-model 256 --layers 4 --heads 8 --seq-len 128 --steps 30",
    "cpu": "--d-model 32 --layers 2 --heads 4 --seq-len 32 --steps 12",
}
"""Of the model that four ranks train, whose gradients Gloo takes through the CPU's memory."""
LATE = {"cuda": ("--kill-step", "150"), "cpu": ()}
LONG = {"cuda": ("--steps", "200"), "cpu": ()}
"""A GPU takes the demo's 45 steps in less time than a rank to be killed needs to be told of it."""
PROVEN = {"cuda": (), "cpu": ("--only", "one process;fp8, one process;ZeRO-3")}


class Wrong(Exception):
    """What a part did is not what it should; in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process; `judge` takes its output and returns figures, or raises Wrong."""

    name: str
    says: str
    command: tuple[str, ...]
    seconds: int
    judge: Callable[[str], str]


def training(name: str, ranks: int, device: str, flags: str, says: str) -> Part:
    """The trainer under `harness run`, which prints MFU and is watched by recorder and digests."""
    command = [
        *(sys.executable, "-m", "harness", "run", "--runs-dir", str(FOLDER), "--run-name", name),
        *("--nproc-per-node", str(ranks), "-m", "harness.trainer.train", "--device", device),
        *("--breakdown", *flags.split()),
    ]

    def judge(output: str) -> str:
        return f"{learned(output)}, {watched(name, ranks)}{eight_bit(output)}"

    return Part(name=name, says=says, command=tuple(command), seconds=90, judge=judge)


def eight_bit(output: str) -> str:
    """How a training in fp8 multiplied, as it said itself; nothing in other formats."""
    how = re.search(r"fp8 (in hardware|emulated)", output)
    if how is None:
        return ""
    return (
        ", in 8 bit" if how[1] == "in hardware" else ", emulated: nothing here multiplies in 8 bit"
    )


def learned(output: str) -> str:
    """Loss and MFU of the steps that were printed; the loss must have fallen, MFU be possible."""
    steps = re.findall(r"step \d+/\d+ loss (\S+) .*? tok/s (\d+) mfu (\S+)", output)
    if len(steps) < 2:
        raise Wrong("no steps with their mfu were printed")
    (first, _, _), (last, tokens, mfu) = steps[0], steps[-1]
    if not float(last) < float(first):
        raise Wrong(f"the loss did not fall: {first} to {last}")
    if not 0 < float(mfu) < 1:  # of what the data sheet promises
        raise Wrong(f"mfu {mfu}")
    return f"loss {first} to {last}, {tokens} tokens/s, mfu {mfu}"


def watched(name: str, ranks: int) -> str:
    """What the journal has of collectives, and of digests where there is somebody to compare with;
    nothing may have been found wrong."""
    state, digests = RunState(), 0
    for record in journal.read(FOLDER / name / journal.FILE_NAME):
        fold(state, record)
        if isinstance(record.event, DigestsRead):
            digests += len(record.event.rows)
    for incident in state.incidents:
        raise Wrong(f"{incident.verdict.verdict} of ranks {incident.verdict.first_failing}")
    attempt = state.attempt
    recorded = [] if attempt is None else [rank.collectives for rank in attempt.ranks.values()]
    if len(recorded) != ranks or not all(recorded):
        raise Wrong("the recorder has collectives of no more than some ranks")
    seen = f"{max(recorded)} collectives recorded"
    if ranks == 1:
        return seen
    if not digests:
        raise Wrong("no digest was taken")
    return f"{seen}, {digests} digests compared"


def proven(output: str) -> str:
    """Rows of `harness.trainer.prove`; its exit code says whether all hold."""
    done = re.search(r"^(\d+ rows) in ", output, re.MULTILINE)
    if done is None:
        raise Wrong("no rows")
    return f"{done[1]} as one process in double precision"


def same_end(output: str) -> str:
    same = re.search(r"^identical: .*$", output, re.MULTILINE)
    if same is None:
        raise Wrong("the two trainings were not compared")
    return f"killed and undisturbed end {same[0]}"


def tested(output: str) -> str:
    done = re.search(r"\d+ passed[^\n]*", output)
    if done is None:
        raise Wrong("no test passed")
    return done[0].rstrip(" =")


def measured(output: str) -> str:
    return "see its output"


def parts(device: str) -> list[Part]:
    """All of them, the cheapest evidence first."""
    python, one = sys.executable, "--global-batch 8 --warmup 5 "
    over = "NCCL" if device == "cuda" else "Gloo"
    # Ranks that share a GPU may not meet over NCCL.
    shared = "--backend gloo --dp-shard 2 --warmup 5 " + SHARED[device]
    demo = ("--nproc-per-node", "1", "--kill-rank", "0", *LATE[device])
    # What is to end bit-equal may use no atomic sums, which GPUs do by default.
    layout = ("--dp", "1", "--tp", "1", "--pp", "1", "--device", device, "--deterministic")
    layout += LONG[device]
    prove = (python, "-m", "harness.trainer.prove", "--device", device, "--ranks", "1,2")
    tests = ("tests/digest/test_device.py", "tests/trainer/test_precision.py")
    speed = (python, "bench/digest.py", "--device", device, "--quick", "--rounds", "5")
    sized = one + SIZES[device]
    return [
        training("fp32", 1, device, sized, f"one rank over {over}, single precision"),
        training("bf16", 1, device, f"{sized} --precision bf16", f"one rank over {over}, bf16"),
        training("fp8", 1, device, f"{sized} --precision fp8", f"one rank over {over}, fp8"),
        training("shared", 4, device, shared, "4 ranks on one device over Gloo, HSDP"),
        Part(
            name="numbers",
            says="each technique of one and two ranks",
            command=(*prove, *PROVEN[device]),
            seconds=150,
            judge=proven,
        ),
        Part(
            name="kill",
            says="a rank is killed, the run goes on",
            command=(python, "-m", "harness.chaos.demo", *demo, "--", *layout),
            seconds=120,
            judge=same_end,
        ),
        Part(
            name="kernels",
            says="digests and 8-bit products are those of the CPU",
            command=(python, "-m", "pytest", "-q", *tests),
            seconds=60,
            judge=tested,
        ),
        Part(
            name="speed", says="digests beside reading", command=speed, seconds=60, judge=measured
        ),
    ]


def carried_out(part: Part, seconds: float) -> str:
    """Its figures. Raises Wrong. Nothing of it is running afterwards."""
    file = FOLDER / f"{part.name}.txt"
    with file.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | ENVIRON,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Wrong(f"not done after {seconds:.0f} s; see {file}") from None
        finally:
            ended(process)
    text = file.read_text(encoding="utf-8", errors="replace")
    if code != 0:
        last = next(iter(reversed([line for line in text.splitlines() if line.strip()])), "")
        raise Wrong(f"exit code {code}: {last[:160]}; see {file}")
    try:
        return part.judge(text)
    except (HarnessError, OSError) as error:
        raise Wrong(f"its journal cannot be read: {error}") from None


def ended(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, which `harness run` answers by ending its tree, then SIGKILL to the session."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check(chosen: Sequence[Part], patience: int) -> int:
    """Run the parts one after the other; 0 when all are right."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    began, right = time.monotonic(), 0
    for part in chosen:
        started = time.monotonic()
        left = SECONDS * patience - (started - began)
        try:
            if left < 1:
                raise Wrong("not run: the time is over")
            figures, good = carried_out(part, min(part.seconds * patience, left)), True
        except Wrong as wrong:
            figures, good = str(wrong), False
        right += good
        took, word = time.monotonic() - started, "right" if good else "WRONG"
        print(f"{word} {part.name:<8} {took:4.0f} s  {part.says}: {figures}", flush=True)
    print(f"gpu-check: {right} of {len(chosen)} right, in {time.monotonic() - began:.0f} s")
    return 0 if right == len(chosen) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", help="parts, with commas between")
    parser.add_argument("--list", action="store_true", help="what the parts are")
    given = parser.parse_args()
    found = parts(given.device)
    if given.list:
        print("\n".join(f"{part.name:<8} {part.says}" for part in found))
        return 0
    if given.only:
        names = given.only.split(",")
        unknown = [name for name in names if name not in {part.name for part in found}]
        if unknown:
            print(f"error: no part is called {unknown[0]!r}; see --list", file=sys.stderr)
            return 2
        found = [part for part in found if part.name in names]
    try:
        if given.device == "cuda" and count_gpus(sys.executable) == 0:
            print("gpu-check: skipped: there is no GPU here that PyTorch can use")
            return 0
    except HarnessError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    os.chdir(ROOT)
    return check(found, PATIENCE[given.device])


if __name__ == "__main__":
    sys.exit(main())
