"""The reference trainer under `harness run`, killed by a plan or not, and what is left of it.

bench/scripts/killed_trainer.py writes down every step of every rank; two runs of one layout must
have written the same, and their last checkpoints must hold the same, bit for bit.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import journal
from harness.state import RunState, fold_all

SCRIPT = Path(__file__).resolve().parent / "scripts" / "killed_trainer.py"
TINY = "--d-model 32 --layers 4 --heads 4 --ffn 64 --seq-len 32 --warmup 2"
RUN = "it"
Kills = Sequence[tuple[int, int, float]]
"""Whom to kill in each attempt: while which step, which rank, at what share of a step's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run left. `history`: rank and step → what each time gave, as text."""

    code: int
    state: RunState
    history: dict[tuple[int, int], list[str]]
    checkpoints: Path

    @property
    def done_again(self) -> int:
        """Steps that rank 0 took more than once."""
        return sum(len(values) - 1 for (rank, _), values in self.history.items() if rank == 0)


def start(folder: Path, ranks: int, flags: str, kills: Kills = ()) -> "subprocess.Popen[bytes]":
    """Start the trainer with `flags` beside TINY; all that it writes is in `folder`."""
    history = folder / "history"
    history.mkdir(parents=True)
    limit = str(len(kills) + 2)
    command = [
        *(sys.executable, "-m", "harness", "run", "--runs-dir", str(folder / "runs")),
        *("--run-name", RUN, "--nproc-per-node", str(ranks)),
        *("--max-restarts", str(len(kills)), "--same-failure-limit", limit),
        *(str(SCRIPT), json.dumps(kills), str(history), *TINY.split(), *flags.split()),
        *("--checkpoint-dir", str(folder / "checkpoints")),
    ]
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def ended(process: "subprocess.Popen[bytes]", folder: Path, seconds: float) -> Trained:
    """The run of `start`, once it is over; it is stopped after `seconds`."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        code = process.wait()
    return Trained(
        code=code,
        state=fold_all(journal.read(folder / "runs" / RUN / journal.FILE_NAME)),
        history=_history(folder / "history"),
        checkpoints=folder / "checkpoints",
    )


def _history(folder: Path) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for file in folder.iterdir():
        for line in file.read_text(encoding="ascii").splitlines():
            _, step, values = line.split(" ", 2)
            found.setdefault((int(file.name), int(step)), []).append(values)
    return found


def differences(calm: Trained, harmed: Trained) -> list[str]:
    """What the two runs do not have in common though they must, in words."""
    found = []
    for name, run in (("the undisturbed run", calm), ("the other run", harmed)):
        if run.code:
            found.append(f"{name} ended with {run.code}")
    steps = {
        step
        for rank, step in calm.history.keys() | harmed.history.keys()
        if set(harmed.history.get((rank, step), ())) != set(calm.history.get((rank, step), ()))
    }
    if steps:
        first = min(steps)
        found.append(f"loss or gradient norm differ at {len(steps)} steps from {first} on")
    compared = subprocess.run(
        [
            *(sys.executable, "-m", "harness.trainer.compare"),
            *(str(calm.checkpoints), str(harmed.checkpoints)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if compared.returncode:
        found.append((compared.stdout or compared.stderr).strip().split("\n")[0])
    return found


def misjudged(state: RunState, kills: Kills) -> list[str]:
    """Kills that were not told as what they were, one an attempt; and what else was told."""
    said = {
        (i.verdict.attempt, i.verdict.verdict, tuple(i.verdict.first_failing))
        for i in state.incidents
    }
    asked = {(n, "killed_by_signal", (rank,)) for n, (_, rank, _) in enumerate(kills)}
    wrong = [f"attempt {a}: {what} of ranks {list(ranks)}" for a, what, ranks in said - asked]
    missed = [f"attempt {a}: the kill of rank {ranks[0]} not told" for a, _, ranks in asked - said]
    return sorted(wrong + missed)
