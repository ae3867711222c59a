"""What a layout costs: step time beside a plain DDP loop on the same model in the same run, and
memory per rank beside the formulas.

    .venv/bin/python bench/trainer.py [--ranks 4] [--rounds 8] [--only ddp,tp4] [--no-results]

For every layout the ranks are forked anew. They build the layout, take steps, and note the most
memory that the process came to hold beyond what it held before; then a plain loop
(DistributedDataParallel, AdamW, nothing else) joins on the same model, and both take turns, so that
neighbours slow both. Seconds are of the slowest rank; CPU seconds are of the mean rank and do not
depend on neighbours. Prints Markdown, writes bench/results/trainer.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import plan  # noqa: E402
from harness.trainer import data, mesh, model, moe, optim  # noqa: E402
from harness.trainer.assemble import Assembly, assemble  # noqa: E402
from harness.trainer.compose import layout  # noqa: E402
from harness.trainer.config import Config  # noqa: E402
from harness.trainer.flags import parse  # noqa: E402
from harness.trainer.pipeline import token_loss  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "trainer.md"
MODEL = (
    "--d-model 256 --layers 8 --heads 8 --seq-len 64 --global-batch 8 --warmup 0 --device cpu "
    "--clip 0"
)
LAYOUTS: dict[str, tuple[str, str]] = {
    "fully_shard": ("fully_shard, replicated", ""),
    "ddp": ("DDP in the trainer", "--ddp"),
    "zero1": ("ZeRO-1", "--dp-shard {n} --zero 1"),
    "zero2": ("ZeRO-2", "--dp-shard {n} --zero 2"),
    "zero3": ("ZeRO-3", "--dp-shard {n} --zero 3"),
    "hsdp": ("HSDP, shards of 2", "--dp-shard 2"),
    "tp": ("tp", "--tp {n}"),
    "tp2-zero3": ("tp 2 x ZeRO-3", "--tp 2 --dp-shard {half}"),
    "1f1b": ("pp, 1F1B", "--pp {n} --micro-batches 8"),
    "interleaved": ("pp, interleaved", "--pp {n} --micro-batches 8 --schedule interleaved"),
    "zbv": ("pp, zero-bubble V", "--pp {n} --micro-batches 8 --schedule zbv"),
    "ring": ("cp, ring", "--cp {n}"),
    "ulysses": ("cp, Ulysses", "--cp {n} --cp-method ulysses"),
    "recompute": ("ZeRO-3, full recomputation", "--dp-shard {n} --zero 3 --recompute full"),
    "bf16": ("ZeRO-3, bf16", "--dp-shard {n} --zero 3 --precision bf16"),
}
_WARM = 2
Act = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds and CPU seconds of a step of both, bytes of this rank, the pipeline's idle share."""

    seconds: list[float]
    plain: list[float]
    cpu: list[float]
    plain_cpu: list[float]
    states: int
    peak: int
    bubble: float


def memory(field: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS now, VmHWM the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def plain_loop(config: Config, source: data.Batches, rank: int, ranks: int) -> Act:
    """The loop that everybody writes first."""
    whole = model.Transformer(config.model)
    model.initialise(whole, config.model, 0)
    wrapped = torch.nn.parallel.DistributedDataParallel(whole)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)
    inputs, targets = source.batch(0, rank, ranks)

    def step() -> None:
        token_loss(wrapped(inputs), targets, targets.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def layout_loop(made: Assembly, config: Config, source: data.Batches, dp: int) -> Act:
    """The trainer's step, without checkpoints and lines."""
    inputs, targets = source.batch(0, made.meshes.dp_rank(), dp)
    inputs, targets = made.here(inputs), made.here(targets)

    def step() -> None:
        share = made.runner(inputs, targets)
        optim.reduce_and_clip(made.optimizer, share, config.optim.clip)
        made.optimizer.step()
        made.optimizer.zero_grad()

    return step


def timed(act: Act) -> tuple[float, float]:
    dist.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - cpu


def measure(rank: int, ranks: int, flags: str, rounds: int) -> Measured:
    config = parse([*MODEL.split(), *flags.split()])
    sizes = layout(config, ranks)
    source = data.Batches(
        data.corpus(), seq_len=config.model.seq_len, global_batch=config.data.global_batch, seed=0
    )
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory("VmRSS")
    made = assemble(config, sizes, torch.device("cpu"), source.tokens_per_step)
    assert not moe.mixtures(made.parts)
    ours = layout_loop(made, config, source, sizes.dp)
    for _ in range(_WARM):
        ours()
    peak, states = memory("VmHWM") - before, optim.state_bytes(made.optimizer)
    theirs = plain_loop(config, source, rank, ranks)
    for _ in range(_WARM):
        theirs()
    took: list[list[float]] = [[], [], [], []]
    idle = []
    for _ in range(rounds):
        seconds, cpu = timed(ours)
        idle.append(1 - made.runner.busy / seconds if sizes.pp > 1 else 0.0)
        beside, beside_cpu = timed(theirs)
        for numbers, value in zip(took, (seconds, beside, cpu, beside_cpu), strict=True):
            numbers.append(value)
    return Measured(
        seconds=took[0],
        plain=took[1],
        cpu=took[2],
        plain_cpu=took[3],
        states=states,
        peak=peak,
        bubble=statistics.median(idle),
    )


def _rank(rank: int, ranks: int, flags: str, rounds: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    mesh.prepare(torch.device("cpu"), threads=1, deterministic=False)
    found = measure(rank, ranks, flags, rounds)
    names = Measured.__slots__
    (folder / f"{rank}.json").write_text(json.dumps({n: getattr(found, n) for n in names}))
    dist.barrier()


def run(ranks: int, flags: str, rounds: int) -> list[Measured]:
    """All ranks' measurements. Raises RuntimeError when one fails."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as name:
        pids = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _rank(rank, ranks, flags, rounds, Path(name))
                    code = 0
                finally:  # not through torch's teardown, which can deadlock
                    os._exit(code)
            pids.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in pids]):
            raise RuntimeError(f"a rank of {flags!r} failed")
        files = [Path(name) / f"{rank}.json" for rank in range(ranks)]
        return [Measured(**json.loads(file.read_text())) for file in files]


def expected(config: Config, ranks: int) -> float:
    """Bytes of states on a rank, in single precision, by harness.plan; pipeline stages as if
    all were alike."""
    sizes = layout(config, ranks)
    here = model.parameter_count(config.model) / (sizes.tp * sizes.pp)
    return plan.fsdp2_states(here, dp=sizes.fsdp).total


def row(name: str, ranks: int, rounds: int) -> str:
    what, flags = LAYOUTS[name]
    flags = flags.format(n=ranks, half=ranks // 2)
    found = run(ranks, flags, rounds)

    def slowest(field: str) -> float:
        return statistics.median(map(max, zip(*(getattr(m, field) for m in found), strict=True)))

    def mean(field: str) -> float:
        return statistics.mean(statistics.median(getattr(m, field)) for m in found)

    ours, plain, cpu = slowest("seconds"), slowest("plain"), mean("cpu")
    config = parse([*MODEL.split(), *flags.split()])
    bubble = "" if config.parallel.pp == 1 else f"{statistics.mean(m.bubble for m in found):.2f}"
    cells: list[Any] = [what, f"{ours:.3f}", f"{ours / plain:.2f}", f"{cpu:.3f}"]
    cells += [f"{cpu / mean('plain_cpu'):.2f}", bubble]
    cells += [f"{max(m.states for m in found) / 2**20:.1f}"]
    cells += [f"{expected(config, ranks) / 2**20:.1f}", f"{max(m.peak for m in found) / 2**20:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def report(options: argparse.Namespace, rows: list[str]) -> str:
    count = model.parameter_count(parse(MODEL.split()).model)
    return "\n".join(
        [
            "# What a layout costs",
            "",
            f"`bench/trainer.py --ranks {options.ranks} --rounds {options.rounds}`, "
            f"{os.cpu_count()} cores, torch {torch.__version__}; {count:,} parameters, 8 sequences "
            "of 64 tokens a step, in single precision but for bf16. x DDP: the time over that of a "
            "plain DistributedDataParallel loop on the same model, in turns with it in the same "
            "processes. CPU: seconds of one rank. States: parameters, gradients and optimizer "
            "state of the fullest rank at rest, and what `harness.plan` says. Peak: the most "
            "memory beyond what the process held before, after two steps. Ranks share the cores, "
            "so what a pipeline rank is idle holds all that it waits for.",
            "",
            "| layout | step s | x DDP | CPU s | x DDP | idle in pp | states MiB | plan MiB "
            "| peak MiB |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default=",".join(LAYOUTS), help="layouts, with commas between")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        rows.append(row(name, options.ranks, options.rounds))
        print(rows[-1], file=sys.stderr, flush=True)
        if not options.no_results:  # what is known so far: the whole takes its time
            RESULTS.write_text(report(options, rows), encoding="utf-8")
    print(report(options, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
