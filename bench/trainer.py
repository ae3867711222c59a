"""What a layout costs: step time beside a plain DDP loop on the same model in the same run, and
memory per rank beside the formulas.

    .venv/bin/python bench/trainer.py [--ranks 4] [--rounds 8] [--only ddp,tp] [--no-results]

For every layout the ranks are forked anew, twice. First they build it for a larger model, take two
steps, and note the most memory that the process came to hold beyond what it held before. Then they
build it for a smaller one, a plain loop (DistributedDataParallel, AdamW, nothing else) joins on the
same model, and both take turns, so that neighbours slow both. Seconds are of the slowest rank; CPU
seconds are of the mean rank and do not depend on neighbours. Prints Markdown, writes
bench/results/trainer.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import plan  # noqa: E402
from harness.trainer import data, mesh, model, optim  # noqa: E402
from harness.trainer.assemble import Assembly, assemble  # noqa: E402
from harness.trainer.compose import layout  # noqa: E402
from harness.trainer.config import Config, Layout  # noqa: E402
from harness.trainer.flags import parse  # noqa: E402
from harness.trainer.pipeline import token_loss  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "trainer.md"
MODEL = (
    "--d-model 256 --layers 8 --heads 8 --seq-len 64 --global-batch 8 --warmup 0 --device cpu "
    "--clip 0"
)
LARGER = "--d-model 512"
"""So that parameters weigh more than what a process takes for code and buffers."""
LAYOUTS: dict[str, tuple[str, str]] = {
    "ddp": ("DDP in the trainer", "--ddp"),
    "fully_shard": ("fully_shard, replicated", ""),
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
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h."""
MIB = 2**20
Act = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds and CPU seconds of a step of both, the pipeline's idle share."""

    seconds: list[float]
    plain: list[float]
    cpu: list[float]
    plain_cpu: list[float]
    bubble: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of this rank: its states at rest, and the most that it held."""

    states: int
    peak: int


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


def held(rank: int, ranks: int, flags: str) -> Held:
    """What two steps of the larger model take."""
    config, source, sizes = prepared(f"{flags} {LARGER}", ranks)
    # Freed tensors go back to the system at once: what is held is then what lives.
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory("VmRSS")
    made = assemble(config, sizes, torch.device("cpu"), source.tokens_per_step)
    step = layout_loop(made, config, source, sizes.dp)
    for _ in range(_WARM):
        step()
    return Held(states=optim.state_bytes(made.optimizer), peak=memory("VmHWM") - before)


def prepared(flags: str, ranks: int) -> tuple[Config, data.Batches, Layout]:
    config = parse([*MODEL.split(), *flags.split()])
    source = data.Batches(
        data.corpus(), seq_len=config.model.seq_len, global_batch=config.data.global_batch, seed=0
    )
    return config, source, layout(config, ranks)


def timings(rank: int, ranks: int, flags: str, rounds: int) -> Measured:
    config, source, sizes = prepared(flags, ranks)
    made = assemble(config, sizes, torch.device("cpu"), source.tokens_per_step)
    ours = layout_loop(made, config, source, sizes.dp)
    theirs = plain_loop(config, source, rank, ranks)
    for _ in range(_WARM):
        ours()
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
        bubble=statistics.median(idle),
    )


def _rank(rank: int, ranks: int, act: Callable[[int, int], Any], folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    mesh.prepare(torch.device("cpu"), threads=1, deterministic=False)
    (folder / f"{rank}.json").write_text(json.dumps(asdict(act(rank, ranks))))
    dist.barrier()


def run(ranks: int, act: Callable[[int, int], Any]) -> list[dict[str, Any]]:
    """What `act` gives on each rank. Raises RuntimeError when one fails."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as name:
        pids = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _rank(rank, ranks, act, Path(name))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:  # not through torch's teardown, which can deadlock
                    os._exit(code)
            pids.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in pids]):
            raise RuntimeError("a rank failed")
        return [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(ranks)]


def expected(config: Config, ranks: int) -> float:
    """Bytes of states on a rank, in single precision, by harness.plan; pipeline stages as if
    all were alike."""
    sizes = layout(config, ranks)
    here = model.parameter_count(config.model) / (sizes.tp * sizes.pp)
    return plan.fsdp2_states(here, dp=sizes.fsdp).total


def passing(config: Config, ranks: int) -> float:
    """Bytes of parameters and gradients on a rank that are there for a part of the step only, at
    its fullest moment: the backward pass of a block.

    What `fully_shard` gathers: of ZeRO-1 and 2 and under pipelining all parameters of the rank,
    else the block in hand and the next one. Of the block in hand the gradients are whole, beside
    them the buffer in single precision that is reduced, and Gloo reduces a copy of it where it is
    to be scattered. DDP has no such bytes: its buckets are the gradients.
    """
    sizes, chosen = layout(config, ranks), config.parallel
    if chosen.ddp:
        return 0.0
    here = model.parameter_count(config.model) / (sizes.tp * sizes.pp)
    block = here / (config.model.layers / sizes.pp)
    computed = 2 if config.memory.precision == "bf16" else 4
    stays = chosen.zero in ("1", "2") or sizes.pp > 1
    copies = 2 if sizes.fsdp > 1 else 1
    return computed * (here if stays else 2 * block) + (computed + 4 * copies) * block


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout: both measurements of all ranks, bytes of states by the plan, and of what passes
    (`passing`)."""

    what: str
    config: Config
    times: list[Measured]
    memory: list[Held]
    plan: float
    passing: float

    @property
    def peak(self) -> int:
        return max(rank.peak for rank in self.memory)


def row(name: str, ranks: int, rounds: int) -> Row:
    what, flags = LAYOUTS[name]
    flags = flags.format(n=ranks, half=ranks // 2)
    larger = flags if "--ddp" in flags else f"{flags} --meta-init"
    config = prepared(f"{flags} {LARGER}", ranks)[0]
    return Row(
        what=what,
        config=config,
        memory=[Held(**one) for one in run(ranks, lambda r, n: held(r, n, larger))],
        times=[Measured(**one) for one in run(ranks, lambda r, n: timings(r, n, flags, rounds))],
        plan=expected(config, ranks),
        passing=passing(config, ranks),
    )


def told(row: Row, ddp: Row | None) -> str:
    """A line of the table; `ddp` is what its memory is held against."""

    def slowest(field: str) -> float:
        return statistics.median(
            map(max, zip(*(getattr(m, field) for m in row.times), strict=True))
        )

    def mean(field: str) -> float:
        return statistics.mean(statistics.median(getattr(m, field)) for m in row.times)

    ours, cpu = slowest("seconds"), mean("cpu")
    piped = row.config.parallel.pp > 1
    cells = [row.what, f"{ours:.3f}", f"{ours / slowest('plain'):.2f}", f"{cpu:.3f}"]
    cells += [f"{cpu / mean('plain_cpu'):.2f}"]
    cells += [f"{statistics.mean(m.bubble for m in row.times):.2f}" if piped else ""]
    cells += [f"{max(m.states for m in row.memory) / MIB:.1f}", f"{row.plan / MIB:.1f}"]
    cells += [f"{row.passing / MIB:.0f}", f"{row.peak / MIB:.0f}"]
    cells += [f"{(row.peak - row.plan - row.passing) / MIB:.0f}"]
    if ddp is not None and ddp is not row:
        less = ddp.plan + ddp.passing - row.plan - row.passing
        cells += [f"{(ddp.peak - row.peak) / MIB:.0f}", f"{less / MIB:.0f}"]
    return "| " + " | ".join(cells) + " |" + " |" * (13 - len(cells))


def report(options: argparse.Namespace, rows: dict[str, Row], load: float) -> str:
    small, large = (
        model.parameter_count(parse([*MODEL.split(), *more.split()]).model) for more in ("", LARGER)
    )
    return "\n".join(
        [
            "# What a layout costs",
            "",
            f"`bench/trainer.py --ranks {options.ranks} --rounds {options.rounds}`, "
            f"{os.cpu_count()} cores, load average up to {load:.0f} with its "
            f"own {options.ranks} ranks, torch {torch.__version__}; 8 sequences of 64 tokens a "
            "step, in single precision but for bf16.",
            "",
            f"Times, of {small:,} parameters: x DDP is the time over that of a plain "
            "DistributedDataParallel loop on the same model, in turns with it in the same "
            "processes; CPU is seconds of one rank. Ranks share the cores, so what a pipeline rank "
            "is idle holds all that it waits for.",
            "",
            f"Memory, of {large:,} parameters, built on the meta device but for DDP: states are "
            "parameters, gradients and optimizer state of the fullest rank at rest, and what "
            "`harness.plan` says. Passing is what the layout makes whole for a part of the step: "
            "the parameters that fully_shard gathers (all of the rank's in ZeRO-1 and 2 and under "
            "pipelining, else those of two blocks), and the gradients of one block with the "
            "buffers they are reduced in. Peak is the most memory beyond what the process held "
            "before, in two steps, and rest what neither states nor passing account for: "
            "activations, and what the allocator keeps. Below DDP: how much less the peak is than "
            "that of DDP, and how much less it is by the formulas, states and passing together.",
            "",
            "| layout | step s | x DDP | CPU s | x DDP | idle in pp | states MiB | plan MiB "
            "| passing MiB | peak MiB | rest MiB | below DDP MiB | by formulas MiB |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(told(row, rows.get("ddp")) for row in rows.values()),
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
    rows: dict[str, Row] = {}
    load = 0.0
    for name in options.only.split(","):
        rows[name] = row(name, options.ranks, options.rounds)
        load = max(load, os.getloadavg()[0])
        print(told(rows[name], rows.get("ddp")), file=sys.stderr, flush=True)
        if not options.no_results:  # what is known so far: the whole takes its time
            RESULTS.write_text(report(options, rows, load), encoding="utf-8")
    print(report(options, rows, load))
    return 0


if __name__ == "__main__":
    sys.exit(main())
