"""A small training in one of several layouts, that knows nothing of faults: `replicated.py LAYOUT`.

ddp, ddp_checkpointed and zero1 hold one replica on each rank; hsdp one on every two ranks; fsdp
cuts one over all; tp_dp and pp_dp cut each replica in two, by columns and by layers; pipelined
does so under a schedule of torch's.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, OUT, BATCH = 32, 64, 8, 8
Ddp = nn.parallel.DistributedDataParallel


@dataclass
class Training:
    """`step` does one forward and backward pass; the optimizer's step is made after it."""

    step: Callable[[], None]
    optimizer: Any


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.drop(torch.relu(self.first(self.norm(x)))))


def layers() -> list[nn.Module]:
    return [Block(), Block(), nn.Linear(WIDTH, OUT)]


class Net(nn.Module):
    """`parts` one after the other, called `name`; blocks are computed twice if not `kept`."""

    def __init__(self, name: str, parts: list[nn.Module], *, kept: bool = True) -> None:
        super().__init__()
        self.add_module(name, nn.ModuleList(parts))
        self.name, self.kept = name, kept

    @property
    def parts(self) -> Any:
        return self.get_submodule(self.name)

    @property
    def blocks(self) -> list[nn.Module]:
        return [part for part in self.parts if isinstance(part, Block)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            again = not self.kept and isinstance(part, Block)
            x = checkpoint(part, x, use_reentrant=False) if again else part(x)
        return x


def _plain(model: nn.Module, optimizer: Any, *, grad: bool = False) -> Training:
    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(BATCH, WIDTH, requires_grad=grad)).float().square().mean().backward()

    return Training(step, optimizer)


def _adam(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), 1e-3)


def ddp(name: str) -> Training:
    model = Ddp(Net(name, layers()))
    return _plain(model, _adam(model))


def ddp_checkpointed(name: str) -> Training:
    model = Ddp(Net(name, layers(), kept=False))
    return _plain(model, _adam(model), grad=True)


def zero1(name: str) -> Training:
    model = Ddp(Net(name, layers()))
    adam = torch.optim.Adam
    return _plain(model, ZeroRedundancyOptimizer(model.parameters(), adam, lr=1e-3))


def _sharded(name: str, mesh: Any) -> Training:
    model = Net(name, layers())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _plain(model, _adam(model))


def fsdp(name: str) -> Training:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    return _sharded(name, mesh)


def hsdp(name: str) -> Training:
    sizes = (dist.get_world_size() // 2, 2)
    return _sharded(name, init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")))


def tp_dp(name: str) -> Training:
    sizes = (dist.get_world_size() // 2, 1, 2)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard", "tp"))
    model = Net(name, layers())
    for block in model.blocks:
        block.drop = nn.Identity()
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
    cut = [block.get_submodule(part) for block in model.blocks for part in ("first", "second")]
    for part in cut:
        fully_shard(part, mesh=mesh["replicate", "shard"])
    training = _plain(model, _adam(model))
    whole = [p for p in model.parameters() if not hasattr(p, "placements")]
    plain_step, over = training.step, mesh["replicate"].get_group()

    def step() -> None:
        torch.manual_seed(torch.initial_seed() + 1)  # a replica's ranks see the same data
        plain_step()
        for parameter in whole:
            dist.all_reduce(parameter.grad, group=over)
            parameter.grad /= dist.get_world_size(over)

    training.step = step
    return training


def pp_dp(name: str) -> Training:
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group(list(range(stage, world, 2))) for stage in range(2)]
    stage = rank % 2
    part = layers()[:1] if stage == 0 else layers()[1:]
    model = Ddp(Net(name, part), process_group=groups[stage])
    optimizer = _adam(model)

    def step() -> None:
        optimizer.zero_grad()
        between = torch.zeros(BATCH, WIDTH)
        if stage == 0:
            out = model(torch.randn(BATCH, WIDTH))
            dist.send(out.detach(), rank + 1)
            dist.recv(between, rank + 1)
            out.backward(between)
        else:
            dist.recv(between, rank - 1)
            between.requires_grad_()
            model(between).square().mean().backward()
            dist.send(between.grad, rank - 1)

    return Training(step, optimizer)


def pipelined(name: str) -> Training:
    """Two stages under a schedule of torch's, four micro-batches each, replicas by DDP."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "pp"))
    stage = rank % 2
    part = layers()[:1] if stage == 0 else layers()[1:]
    model = Ddp(Net(name, part), process_group=mesh["dp"].get_group())
    schedule = Schedule1F1B(
        PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh["pp"].get_group()),
        n_microbatches=4,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )
    optimizer = _adam(model)

    def step() -> None:
        optimizer.zero_grad()
        if stage == 0:
            schedule.step(torch.randn(4 * BATCH, WIDTH))
        else:
            schedule.step(target=torch.randn(4 * BATCH, OUT))

    return Training(step, optimizer)


LAYOUTS: dict[str, Callable[[str], Training]] = {
    made.__name__: made
    for made in (ddp, ddp_checkpointed, zero1, fsdp, hsdp, tp_dp, pp_dp, pipelined)
}


def train(layout: str, steps: int = 10, seed: int = 0, name: str = "layers") -> Training:
    """Train a new model, `name` in the names of its parameters. There is a process group."""
    torch.manual_seed(seed)
    training = LAYOUTS[layout](name)
    group = 2 if layout == "tp_dp" else 1
    torch.manual_seed(1000 + dist.get_rank() // group)
    for _ in range(steps):
        training.step()
        training.optimizer.step()
    return training


def numbers_of(training: Training) -> str:
    """A hash of what this rank holds of the parameters and of the optimizer's state."""
    digest = hashlib.sha256()
    optimizer = getattr(training.optimizer, "optim", training.optimizer)  # ZeRO's own part
    held = [p for group in training.optimizer.param_groups for p in group["params"]]
    for state in [optimizer.state[p] for p in held if p in optimizer.state]:
        held += [value for value in state.values() if isinstance(value, torch.Tensor)]
    for tensor in held:
        own = getattr(tensor, "_local_tensor", tensor).detach().contiguous()
        digest.update(own.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(sys.argv[1], steps=int(sys.argv[2]) if len(sys.argv) > 2 else 10)
    dist.destroy_process_group()
