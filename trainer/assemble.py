"""One rank's model, optimizer and runner, put together from the configuration in the one right
order: build, spread over the mesh, fill."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.trainer import mesh, model, optim, parallelize, pipeline, precision
from harness.trainer.compose import stage_sizes
from harness.trainer.config import Config, Layout
from harness.trainer.mesh import Meshes
from harness.trainer.model import Transformer
from harness.trainer.precision import LossScale, Scales


@dataclass(slots=True, kw_only=True)
class Assembly:
    """What takes part in a step on this rank."""

    meshes: Meshes
    parts: list[Transformer]
    optimizer: torch.optim.Optimizer
    runner: pipeline.Runner
    scale: LossScale
    float8: Scales | None
    positions: torch.Tensor | None

    @property
    def modules(self) -> list[nn.Module]:
        return list(self.parts)

    def here(self, tokens: torch.Tensor) -> torch.Tensor:
        """The part of (batch, seq) tokens that this rank's context-parallel place holds."""
        return tokens if self.positions is None else tokens[:, self.positions].contiguous()


def assemble(config: Config, sizes: Layout, device: torch.device, tokens: int) -> Assembly:
    """Needs the process group. `tokens` are those of the global batch."""
    meshes = mesh.build(device, sizes, experts=bool(config.experts.experts))
    held = parallelize.positions(meshes, config)
    parts = [_part(config, stage, held) for stage in _stages(config, meshes, sizes)]
    float8 = None
    if config.memory.precision == "fp8":
        float8 = precision.to_float8(list(parts), config.model.layers)
    for part in parts:
        if not config.memory.meta_init:
            model.initialise(part, config.model, config.run.seed)
            part.to(device)
        if config.memory.precision == "fp64":
            part.double()
        parallelize.parallelize(part, meshes, config)
        if config.memory.meta_init:
            part.to_empty(device="cpu" if config.parallel.offload else device)
            part.fill_buffers(device)
            model.initialise(part, config.model, config.run.seed)
    fp16 = config.memory.precision == "fp16"
    scale = LossScale(value=config.memory.loss_scale if fp16 else 1.0, dynamic=fp16)
    ddp = None
    if config.parallel.ddp:
        ddp = DistributedDataParallel(
            parts[0], bucket_cap_mb=config.parallel.bucket_mb, gradient_as_bucket_view=True
        )
    kind = pipeline.Pipelined if sizes.pp > 1 else pipeline.Accumulate
    runner = kind(
        parts=parts,
        mesh=meshes.dense,
        config=config,
        tokens=tokens,
        device=device,
        scale=scale,
        ddp=ddp,
    )
    return Assembly(
        meshes=meshes,
        parts=parts,
        optimizer=optim.build(parts, config.optim),
        runner=runner,
        scale=scale,
        float8=float8,
        positions=held,
    )


def _stages(config: Config, meshes: Meshes, sizes: Layout) -> list[int]:
    """Numbers of the stages on this rank."""
    count, rank = len(stage_sizes(config)), meshes.dense.get_local_rank("pp")
    if count == sizes.pp:
        return [rank]
    return pipeline.stages_of(rank, sizes.pp, count, config.parallel.schedule)


def _part(config: Config, stage: int, held: torch.Tensor | None) -> Transformer:
    stages = stage_sizes(config)
    first, last = pipeline.stage_layers(stage, stages)
    with torch.device("meta" if config.memory.meta_init else "cpu"):
        return Transformer(
            config.model,
            first,
            last,
            begins=stage == 0,
            ends=stage == len(stages) - 1,
            experts=config.experts,
            positions=held,
        )
