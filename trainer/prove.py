"""Hold every layout against one process: `python -m harness.trainer.prove`.

Each row of matrix.toml takes one step from the same first parameters on the same batch. Compared
are the loss, every gradient and every parameter after the step, gathered from the ranks, with a
plain model in one process and double precision, which shares only the model's own code.

What may differ: rows without --precision run in double too, where another order of sums changes a
tensor by 1e-15 of its size or so; the bound is 1e-10. In other formats the bound is that of the
format (RELATIVE) on the norm of a gradient's difference over the gradient's norm.

Experts are chosen, and a choice between two as good as equal is made by the last bit. So the one
process sends each token to the experts that the row sent it to, and every choice that is not its
own must have been such a tie: two scores, each of which the format may change by RELATIVE of
itself, so at most twice that apart.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from harness.trainer import data, mesh, model, moe, optim, routes
from harness.trainer.assemble import Assembly, assemble
from harness.trainer.compose import layout
from harness.trainer.config import Config, ConfigError, Place
from harness.trainer.flags import OneLineParser, parse, toml
from harness.trainer.pipeline import token_loss

MATRIX = Path(__file__).with_name("matrix.toml")
TINY = (
    "--d-model 32 --layers 4 --heads 4 --ffn 64 --seq-len 32 --warmup 0 --steps 5 --lr 1e-2 "
    "--clip 0.5"
)
RELATIVE = {"fp64": 1e-10, "fp32": 1e-5, "bf16": 0.05, "fp16": 0.01, "fp8": 0.3}
LOSS = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 1e-2, "fp16": 2e-3, "fp8": 2e-2}
"""Absolute, of a loss near 5.5."""
_TIMEOUT = timedelta(seconds=120)
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    ranks: int
    flags: str
    device: str = "cpu"

    @property
    def config(self) -> Config:
        exact = () if "--precision" in self.flags else ("--precision", "fp64")
        # One rank meets NCCL on a GPU; several share it.
        place = ("--device", self.device, "--backend", "auto" if self.ranks == 1 else "gloo")
        return parse([*TINY.split(), *exact, *place, *self.flags.split()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Largest differences of a row, and what is wrong with them; "" when nothing is."""

    name: str
    ranks: int
    flags: str
    device: str
    loss: float
    gradient: float
    parameter: float
    worst: str
    wrong: str
    moved: int = 0
    gap: float = 0.0
    """Tokens that one process would have sent to other experts, and by how far these lead."""


def rows(path: Path = MATRIX) -> list[Row]:
    """The matrix. Raises ConfigError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--matrix {path}: {error.strerror}") from None
    return [Row(**row) for row in toml(text)["row"]]


def batches(config: Config) -> data.Batches:
    return data.Batches(
        data.corpus()[:20000],
        seq_len=config.model.seq_len,
        global_batch=config.data.global_batch,
        seed=config.run.seed,
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """One step: the loss, gradients before clipping, parameters after; the experts that were
    chosen, and, of the reference, how they differ from its own choice."""

    loss: float
    gradients: Tensors
    parameters: Tensors
    choices: routes.Choices
    replayed: Sequence[routes.Replayed] = ()


def reference(config: Config, choices: routes.Choices) -> Taken:
    """One process, double precision, the whole batch at once, no mesh; tokens go to the experts
    that they are told to."""
    source = batches(config)
    plain = model.Transformer(config.model, experts=config.experts)
    model.initialise(plain, config.model, config.run.seed)
    plain.double()
    for mixture in moe.mixtures([plain]).values():
        mixture.loss_scale = 1 / config.data.global_batch
    replayed = routes.replay(plain, choices)
    inputs, targets = source.batch(0, 0, 1)
    loss = token_loss(plain(inputs), targets, source.tokens_per_step)
    torch.autograd.backward(loss)
    gradients = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
    optimizer = optim.build([plain], config.optim)
    norm = nn.utils.get_total_norm(gradients.values())
    for parameter in plain.parameters():
        assert parameter.grad is not None
        parameter.grad *= min(1.0, config.optim.clip / float(norm))
    _advance(optimizer, config)
    parameters = {name: p.detach() for name, p in plain.named_parameters()}
    return Taken(float(loss.detach()), gradients, parameters, choices, replayed)


def _asked(config: Config, choices: routes.Choices) -> str:
    """All that a reference depends on: rows that share it share the reference."""
    chosen = {block: table.tolist() for block, table in choices.items()}
    return repr((config.model, config.experts, config.optim, config.data, config.run.seed, chosen))


def _advance(optimizer: torch.optim.Optimizer, config: Config) -> None:
    for group in optimizer.param_groups:
        group["lr"] = optim.learning_rate(config.optim, 1)
    optimizer.step()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def taken(row: Row, device: torch.device) -> Taken:
    """The same step in the row's layout; whole only on rank 0. Needs the process group."""
    config, rank = row.config, dist.get_rank()
    sizes, source = layout(config, row.ranks), batches(config)
    made = assemble(config, sizes, device, source.tokens_per_step)
    recorded = routes.record(made.parts)
    inputs, targets = source.batch(0, made.meshes.dp_rank(), sizes.dp)
    share = _passed(made, made.here(inputs).to(device), made.here(targets).to(device))
    scale = made.scale.value
    _undisturbed(made, recorded, config)
    gradients = _gathered(made, {n: _whole(g) / scale for n, g in _gradients(made)}, rank)
    loss, _ = optim.reduce_and_clip(
        made.optimizer, share / sizes.tp, config.optim.clip, scale=scale
    )
    _advance(made.optimizer, config)
    parameters = {n: _whole(p) for part in made.parts for n, p in part.named_parameters()}
    return Taken(
        loss, gradients, _gathered(made, parameters, rank), _choices(made, config, recorded, rank)
    )


def _passed(made: Assembly, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Forward and backward, in fp16 again with half the loss scale until nothing overflows: so a
    training begins, and takes its first step."""
    share = made.runner(inputs, targets)
    while made.scale.value > 1 and not _finite(made, inputs.device):
        made.scale.after(False)
        made.optimizer.zero_grad()
        for mixture in moe.mixtures(made.parts).values():
            mixture.forget()
        share = made.runner(inputs, targets)
    return share


def _finite(made: Assembly, device: torch.device) -> bool:
    return math.isfinite(optim.squared_norm(made.optimizer, device))


def _undisturbed(made: Assembly, recorded: dict[int, routes.Recorded], config: Config) -> None:
    """Of the memory that a pipeline has passed through to learn the shapes, nothing is left in what
    outlasts the step: the largest values seen by 8-bit layers, the loads of experts."""
    for name, largest in (made.float8.current if made.float8 is not None else {}).items():
        assert all(bool(torch.isfinite(one)) for one in largest), f"largest values of {name}"
    for block, mixture in moe.mixtures(made.parts).items():
        seen = recorded[block].seen[-config.parallel.micro_batches :]
        once = sum(chosen.numel() for chosen in seen)
        # What is computed again is counted again.
        assert int(mixture.loads[:-1].sum()) in (once, 2 * once), f"loads of block {block}"


def _choices(
    made: Assembly, config: Config, recorded: dict[int, routes.Recorded], rank: int
) -> routes.Choices:
    """What the routers of all ranks chose, on rank 0."""
    if not config.experts.experts:
        return {}
    seq, sequences = config.model.seq_len, config.data.global_batch
    tp = made.meshes.dense["tp"]
    places = torch.arange(seq) if made.positions is None else made.positions
    places = places.chunk(tp.size())[tp.get_local_rank()]
    rows = sequences // layout(config, dist.get_world_size()).dp
    mine = routes.pieces(
        recorded, config.parallel.micro_batches, made.meshes.dp_rank() * rows, places
    )
    parts: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(mine, parts)
    return routes.joined((piece for part in parts or () for piece in part), sequences, seq)


def _gradients(made: Assembly) -> Iterator[tuple[str, torch.Tensor]]:
    for part in made.parts:
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None, name
            yield name, parameter.grad


def _gathered(made: Assembly, mine: Tensors, rank: int) -> Tensors:
    """What all pipeline stages have, on rank 0."""
    dense = made.meshes.dense
    speaks = all(dense.get_local_rank(axis) == 0 for axis in mesh.AXES[1:])
    parts: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(mine if speaks else {}, parts)
    return {name: tensor for part in parts or () for name, tensor in part.items()}


def _difference(mine: Tensors, theirs: Tensors) -> tuple[float, str]:
    """Largest norm of a difference over the norm, and whose it is."""
    if mine.keys() != theirs.keys():
        return float("inf"), ", ".join(sorted(mine.keys() ^ theirs.keys()))
    sizes = {
        name: float((mine[name].double() - whole).norm() / (whole.norm() + 1e-300))
        for name, whole in theirs.items()
    }
    worst = max(sizes, key=lambda name: sizes[name])
    return sizes[worst], worst


def judged(row: Row, mine: Taken, theirs: Taken) -> Outcome:
    """The row against the reference."""
    kind = row.config.memory.precision
    loss = abs(mine.loss - theirs.loss)
    gradient, worst = _difference(mine.gradients, theirs.gradients)
    parameter, farthest = _difference(mine.parameters, theirs.parameters)
    moved = sum(one.moved for one in theirs.replayed)
    gap = max((one.gap for one in theirs.replayed), default=0.0)
    wrong = []
    if not gap <= 2 * RELATIVE[kind]:
        wrong.append(f"{moved} tokens went to other experts, past one that leads by {gap:.2g}")
    if not loss <= LOSS[kind]:
        wrong.append(f"loss {mine.loss:.6f}, one process {theirs.loss:.6f}")
    if not gradient <= RELATIVE[kind]:
        wrong.append(f"gradient of {worst} differs by {gradient:.2g} of its size")
    # Adam divides a gradient by its own size: where it is all noise, so is the step.
    if kind == "fp64" and not parameter <= RELATIVE[kind]:
        wrong.append(f"{farthest} differs by {parameter:.2g} of its size after the step")
    return Outcome(
        **asdict(row),
        loss=loss,
        gradient=gradient,
        parameter=parameter,
        worst=worst,
        wrong="; ".join(wrong),
        moved=moved,
        gap=gap,
    )


def _rank(rank: int, ranks: int, todo: list[Row], folder: Path) -> None:
    """What one rank does: all rows of this many ranks, one after another."""
    store = dist.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]
    place = Place(rank=rank, local_rank=rank, world_size=ranks, local_world_size=ranks)
    device = mesh.choose_device(todo[0].config, place)
    backend = mesh.backend(device, todo[0].config)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_TIMEOUT)
    # A gradient is gathered one axis after another; that is the point here, and no news.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    mesh.prepare(device, threads=1, deterministic=None)
    # What is read before it was written is NaN, and does not pass for right by chance.
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    known: dict[str, Taken] = {}
    for number, row in enumerate(todo):
        mine = taken(row, device)
        if rank == 0:
            config = row.config
            key = _asked(config, mine.choices)
            if key not in known:
                known[key] = reference(config, mine.choices)
            outcome = judged(row, mine, known[key])
            (folder / f"{number}.json").write_text(json.dumps(asdict(outcome)))
        del mine
        gc.collect()
    dist.barrier()


def _started(ranks: int, todo: list[Row], folder: Path) -> dict[int, int]:
    """Fork the ranks; pid to rank. Nothing here has made a thread or a group yet."""
    pids = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            # No destroy_process_group: torch can deadlock in it, and all is over anyway.
            with contextlib.suppress(BaseException):
                try:
                    _rank(rank, ranks, todo, folder)
                    code = 0
                except BaseException:
                    (folder / f"{rank}.err").write_text(traceback.format_exc())
            os._exit(code)
        pids[pid] = rank
    return pids


def prove(ranks: int, todo: list[Row]) -> Iterator[Outcome]:
    """Run rows of the same number of ranks in one set of processes, a fresh one after a failure."""
    while todo:
        with tempfile.TemporaryDirectory(prefix="harness-prove-") as name:
            folder = Path(name)
            _run(ranks, todo, folder)
            for i, row in enumerate(list(todo)):
                outcome = _read(row, folder, i)
                yield outcome
                todo = todo[1:]
                if outcome.loss == float("inf"):
                    break


def _run(ranks: int, todo: list[Row], folder: Path) -> None:
    pids = _started(ranks, todo, folder)
    try:
        while pids:
            pid, status = os.wait()
            if pids.pop(pid, None) is not None and status:
                break
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _read(row: Row, folder: Path, number: int) -> Outcome:
    file = folder / f"{number}.json"
    if file.exists():
        return Outcome(**json.loads(file.read_text()))
    told = [each.read_text() for each in sorted(folder.glob("*.err"))]
    first = next((text for text in told if "Connection closed" not in text), "".join(told[:1]))
    last = (first.strip().splitlines() or ["a rank died"])[-1]
    inf = float("inf")
    return Outcome(
        **asdict(row), loss=inf, gradient=inf, parameter=inf, worst="", wrong=f"not run: {last}"
    )


def _chosen(matrix: Path, only: str | None, ranks: str | None, device: str) -> list[Row]:
    found = [replace(row, device=device) for row in rows(matrix)]
    if only is not None:
        names = [name.strip() for name in only.split(";")]
        unknown = sorted(set(names) - {row.name for row in found})
        if unknown:
            raise ConfigError(f"--only: no row is called {unknown[0]!r}; see {matrix}")
        found = [row for row in found if row.name in names]
    if ranks is not None:
        if not all(part.strip().isdecimal() for part in ranks.split(",")):
            raise ConfigError(f"--ranks {ranks}: numbers with commas between")
        sizes = {int(part) for part in ranks.split(",")}
        found = [row for row in found if row.ranks in sizes]
    if device == "cuda":
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the ranks are forked from here
        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: there is no GPU here that PyTorch can use")
        # What Gloo cannot carry between ranks that share a GPU.
        found = [row for row in found if row.ranks == 1 or not mesh.sends(row.config)]
    if not found:
        raise ConfigError("no row is left to prove")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 all rows hold, 1 one does not, 2 wrong arguments (one line on stderr)."""
    parser = OneLineParser(
        prog="harness.trainer.prove", description="Hold every layout against one process."
    )
    parser.add_argument("--matrix", type=Path, default=MATRIX, metavar="FILE", help="other rows")
    parser.add_argument("--only", metavar="NAME;NAME", help="rows of matrix.toml, by name")
    parser.add_argument("--ranks", metavar="N,N", help="rows of so many ranks")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="cuda: all ranks on the GPUs here, without what sends outside of collectives",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    try:
        arguments: argparse.Namespace = parser.parse_args(argv)
        todo = _chosen(arguments.matrix, arguments.only, arguments.ranks, arguments.device)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    began, good = time.monotonic(), True
    for ranks in sorted({row.ranks for row in todo}):
        for outcome in prove(ranks, [row for row in todo if row.ranks == ranks]):
            good = good and not outcome.wrong
            if arguments.json:
                shown = asdict(outcome)
                finite = {k: v for k, v in shown.items() if v != float("inf")}
                print(json.dumps({"schema": 1} | finite), flush=True)
                continue
            figures = f"{outcome.loss:.1e} {outcome.gradient:.1e} {outcome.parameter:.1e}"
            print(f"{outcome.ranks} {outcome.name:<36} {outcome.wrong or figures}", flush=True)
    if not arguments.json:
        print(f"{len(todo)} rows in {time.monotonic() - began:.0f} s; differences: loss, gradient,")
        print("parameter after a step (relative, of the worst tensor)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
