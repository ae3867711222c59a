"""How a part of the model is spread: tensor parallel first, then fully_shard over the data axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from harness.trainer import context
from harness.trainer.config import Config, Experts
from harness.trainer.mesh import Meshes
from harness.trainer.model import Block, TiedHead, Transformer
from harness.trainer.moe import mixtures
from harness.trainer.precision import policy

_ROWS = (Shard(1),)


def _feed_forward(mixture: bool, shared: bool) -> dict[str, ParallelStyle]:
    gathered = PrepareModuleInput(input_layouts=_ROWS, desired_input_layouts=(Replicate(),))
    pair: dict[str, ParallelStyle] = {
        "w1": ColwiseParallel(),
        "w3": ColwiseParallel(),
        "w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    if not mixture:
        return {"ffn": gathered, **{f"ffn.{name}": style for name, style in pair.items()}}
    # Each rank routes its own part of the sequence; experts are spread by expert_parallel.
    plan: dict[str, ParallelStyle] = {
        "ffn": PrepareModuleInput(
            input_layouts=_ROWS, desired_input_layouts=_ROWS, use_local_output=True
        ),
        "ffn.router": SequenceParallel(use_local_output=True),
    }
    if shared:
        plan |= {"ffn.shared": gathered, **{f"ffn.shared.{n}": s for n, s in pair.items()}}
    return plan


def tensor_parallel(model: Transformer, tp: DeviceMesh, experts: Experts) -> None:
    """Megatron's column/row pairs, activations between them sharded over the sequence.

    Between blocks (and between pipeline stages) activations are plain local tensors of shape
    (batch, seq / tp, d_model). The embedding and the head are split over the vocabulary, and the
    logits stay split for the vocab-parallel loss. Shoeybi et al. 2019, arXiv:1909.08053;
    Korthikanti et al. 2022, arXiv:2205.05198.
    """
    block: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        **_feed_forward(bool(experts.experts), experts.shared),
    }
    plan: dict[str, ParallelStyle] = {}
    if model.embed is not None:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    for name in model.layers:
        plan |= {f"layers.{name}.{part}": style for part, style in block.items()}
    if model.norm is not None:
        plan["norm"] = SequenceParallel()
    if isinstance(model.head, TiedHead):
        plan["head"] = PrepareModuleInput(
            input_layouts=(Shard(1), Shard(0)), desired_input_layouts=(Replicate(), Shard(0))
        )
    elif model.head is not None:
        plan["head"] = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
    # Every rank holds the same first values already: nothing to broadcast.
    parallelize_module(model, tp, plan, src_data_rank=None)


def expert_parallel(model: Transformer, meshes: Meshes) -> None:
    """Tell every mixture its groups, and leave on this rank the experts that belong here."""
    over = [meshes.dense["tp"]] if meshes.dense["tp"].size() > 1 else []
    if meshes.data is not None:
        over.append(meshes.data["cp"])
    for mixture in mixtures([model]).values():
        mixture.sequence_groups = [mesh.get_group() for mesh in over]
        if meshes.sparse is None:
            continue
        ep = meshes.sparse["ep"]
        mixture.group = ep.get_group()
        for name, whole in list(mixture.experts.named_parameters()):
            here = distribute_tensor(whole.detach(), ep, [Shard(0)], src_data_rank=None)
            mixture.experts.register_parameter(name, nn.Parameter(here))


def _shard(module: nn.Module, mesh: DeviceMesh, config: Config, again: bool, **more: Any) -> None:
    """fully_shard, with gradients summed and not averaged: the loss is already divided by the
    tokens of the global batch."""
    offload: OffloadPolicy = OffloadPolicy()
    if config.parallel.offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    sharded = fully_shard(
        module,
        mesh=mesh,
        reshard_after_forward=again,
        mp_policy=policy(config.memory.precision),
        offload_policy=offload,
        **more,
    )
    assert isinstance(sharded, FSDPModule)
    sharded.set_gradient_divide_factor(1.0)
    # A factor alone becomes PREMUL_SUM, which Gloo does not have.
    sharded.set_force_sum_reduction_for_comms(True)


def _within(parameter: nn.Parameter, *, ranks: int) -> Shard:
    """Where experts are cut: their number is spread over ep already, and of the other dimensions
    fully_shard takes only one that it can divide evenly; compose.layout sees to it."""
    return Shard(next(dim for dim in (1, 2) if parameter.shape[dim] % ranks == 0))


def data_parallel(model: Transformer, meshes: Meshes, config: Config) -> None:
    """The one data-parallel path: fully_shard on (dp_replicate, dp_shard), per block and root.

    (N, 1) is DDP, (1, N) is ZeRO-3, (R, S) is HSDP. ZeRO-1 and 2 do not reshard after the forward
    pass; whether a micro-batch is reduced at once (2, 3) is decided where it is run.
    """
    # Under pipelining a block is used for every micro-batch: gathering it again each time costs
    # more than it saves.
    pipelined = meshes.dense["pp"].size() > 1
    again = config.parallel.zero in ("auto", "3") and not pipelined
    dense = meshes.dense["dp_replicate", "dp_shard"]
    if meshes.sparse is not None:
        sparse = meshes.sparse["dp_replicate", "efsdp"]
        for mixture in mixtures([model]).values():
            places = {"shard_placement_fn": partial(_within, ranks=sparse["efsdp"].size())}
            _shard(mixture.experts, sparse, config, again, **places)
    for block in [*model.layers.values(), model]:
        _shard(block, dense, config, again)


def parallelize(model: Transformer, meshes: Meshes, config: Config) -> None:
    """Spread one part of the model over all axes of the meshes but pp, in place."""
    for block in model.layers.values():
        assert isinstance(block, Block)
        block.recompute = config.memory.recompute
        if meshes.data is not None:
            block.attention.core = context.core(
                config.parallel.cp_method, meshes.data["cp"], config.model.seq_len
            )
    if meshes.dense["tp"].size() > 1:
        tensor_parallel(model, meshes.dense["tp"], config.experts)
    if config.experts.experts:
        expert_parallel(model, meshes)
    if not config.parallel.ddp:
        data_parallel(model, meshes, config)


def positions(meshes: Meshes, config: Config) -> torch.Tensor | None:
    """The tokens of each sequence that come to this rank, in order; None: all."""
    if meshes.data is None:
        return None
    return context.positions(
        config.parallel.cp_method, meshes.cp_rank(), config.parallel.cp, config.model.seq_len
    )
