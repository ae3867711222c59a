"""How a part of the model is spread: tensor parallel first, then fully_shard over the data axes."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from harness.trainer.model import TiedHead, Transformer


def tensor_parallel(model: Transformer, tp: DeviceMesh) -> None:
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
        "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "ffn.w1": ColwiseParallel(),
        "ffn.w3": ColwiseParallel(),
        "ffn.w2": RowwiseParallel(output_layouts=Shard(1)),
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


def data_parallel(model: nn.Module, dp: DeviceMesh, *, reshard_after_forward: bool) -> None:
    """The one data-parallel path: fully_shard on (dp_replicate, dp_shard), per block and root.

    (N, 1) is DDP, (1, N) is ZeRO-3, (R, S) is HSDP. Gradients are summed, not averaged: the loss
    is already divided by the tokens of the global batch.
    """
    assert isinstance(model, Transformer)
    for block in [*model.layers.values(), model]:
        sharded = fully_shard(block, mesh=dp, reshard_after_forward=reshard_after_forward)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        # A factor alone becomes PREMUL_SUM, which Gloo does not have.
        sharded.set_force_sum_reduction_for_comms(True)


def parallelize(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread one part of the model over the tp and dp axes of the mesh, in place."""
    if mesh["tp"].size() > 1:
        tensor_parallel(model, mesh["tp"])
    # Under pipelining a block is used for every micro-batch: gathering it again each time costs
    # more than it saves.
    keep = mesh["pp"].size() > 1
    data_parallel(model, mesh["dp_replicate", "dp_shard"], reshard_after_forward=not keep)
