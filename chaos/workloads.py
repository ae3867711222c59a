"""What is broken: the programs of chaos runs, in which layouts, and how their results compare.

A workload is a command line with `{folder}` where its files go. `final` says how two finished runs
are compared bit for bit: by files that each rank wrote, or by the newest checkpoints.
"""

import dataclasses
import filecmp
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import FaultError

Final = Literal["files", "checkpoints", "none"]
DDP = str(Path(__file__).resolve().parent / "scripts" / "plain_ddp.py")
TRAINER = "harness.trainer.train"
"""By its name: chaos breaks it, and knows nothing else of it."""
_TINY = (
    *("--d-model", "32", "--layers", "4", "--heads", "4", "--ffn", "64", "--seq-len", "32"),
    *("--warmup", "2", "--checkpoint-dir", "{folder}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program, its arguments, its ranks on each of `nodes`, and options of `harness run`."""

    name: str
    script: str
    module: bool = False
    args: tuple[str, ...] = ()
    nproc: int = 4
    nodes: int = 1
    options: tuple[str, ...] = ()
    final: Final = "none"
    steps: int = 0
    """It takes; 0: as many as it says itself."""
    every: int = 5
    """Steps between its checkpoints."""
    savers: tuple[int, ...] = ()
    """Ranks that write its checkpoints; empty: all."""
    has: frozenset[str] = frozenset()
    """What kinds of fault may need: loader, checkpoints, digests, replicas, mesh."""

    @property
    def world_size(self) -> int:
        return self.nproc * self.nodes

    def command(self, folder: Path) -> list[str]:
        """Script and arguments, as `harness run` takes them."""
        words = [word.replace("{folder}", str(folder)) for word in self.args]
        length = ["--steps", str(self.steps)] if self.steps else []
        return [*(["-m"] if self.module else []), self.script, *words, *length]


def _trainer(name: str, flags: str, nproc: int, *has: str) -> Workload:
    return Workload(
        name=name,
        script=TRAINER,
        module=True,
        args=(*_TINY, *flags.split(), "--checkpoint-every", "5"),
        nproc=nproc,
        final="checkpoints",
        steps=24,
        has=frozenset({"checkpoints", "manifests", "mesh", *has}),
    )


_DDP = Workload(
    name="ddp",
    script=DDP,
    args=("{folder}",),
    nproc=3,
    final="files",
    steps=30,
    savers=(0,),
    has=frozenset({"checkpoints", "loader", "replicas"}),
)

BUILT_IN: dict[str, Workload] = {
    each.name: each
    for each in (
        _DDP,
        dataclasses.replace(_DDP, name="nodes2", nproc=2, nodes=2),
        _trainer("dp2", "--dp 2", 2, "replicas"),
        _trainer("dp4", "--dp 4", 4, "replicas"),
        _trainer("dp8", "--dp 8", 8, "replicas"),
        _trainer("fsdp4", "--dp 4 --dp-shard 4", 4),
        _trainer("tp2pp2dp2", "--tp 2 --pp 2 --dp 2 --micro-batches 2", 8, "replicas"),
        _trainer("pp4dp2", "--pp 4 --dp 2 --micro-batches 4", 8, "replicas"),
        _trainer("hsdp4", "--dp 4 --dp-shard 2", 4, "replicas"),
        _trainer("interleaved2", "--pp 2 --micro-batches 4 --schedule interleaved", 2),
        _trainer("zbv2", "--pp 2 --micro-batches 4 --schedule zbv", 2),
        _trainer("cp2", "--cp 2", 2),
        _trainer("ep2", "--experts 4 --dp-shard 2 --ep 2", 2),
    )
}


def workload(name: str) -> Workload:
    """The built-in one of that name. Raises UsageError."""
    if name not in BUILT_IN:
        raise FaultError(f"no workload is called {name!r}", help=f"there are {', '.join(BUILT_IN)}")
    return BUILT_IN[name]


def same_final(one: Workload, calm: Path, harmed: Path) -> tuple[bool | None, str]:
    """Whether both runs ended with the same parameters; None where nobody can say. And why."""
    match one.final:
        case "files":
            return _same_files(calm / "final", harmed / "final")
        case "checkpoints":
            done = subprocess.run(
                [sys.executable, "-m", "harness.trainer.compare", str(calm), str(harmed)],
                capture_output=True,
                text=True,
                check=False,
            )
            lines = (done.stdout or done.stderr).strip().splitlines() or ["no answer"]
            return done.returncode == 0, lines[0]
        case _:
            return None, "the workload leaves nothing to compare"


def _same_files(calm: Path, harmed: Path) -> tuple[bool, str]:
    names = sorted(each.name for each in calm.glob("*"))
    if not names:
        return False, f"{calm} is empty"
    _, different, missing = filecmp.cmpfiles(calm, harmed, names, shallow=False)
    if missing:
        return False, f"{', '.join(missing)} not written"
    if different:
        return False, f"{', '.join(different)} differ"
    return True, f"{len(names)} files identical"
