"""Forward and backward of one step: micro-batches in turn, or the 1F1B pipeline schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from harness.trainer.model import Transformer

ForwardBackward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def stage_layers(stage: int, stages: int, layers: int) -> tuple[int, int]:
    """First and last (exclusive) block of a pipeline stage."""
    size = layers // stages
    return stage * size, (stage + 1) * size


def token_loss(logits: torch.Tensor, targets: torch.Tensor, tokens: int) -> torch.Tensor:
    """Cross entropy summed over these tokens, divided by the tokens of the global batch.

    Summing the result over micro-batches and data-parallel ranks gives the mean over all tokens,
    and summing its gradients that mean's gradient. logits (batch, seq, vocab), also split over the
    vocabulary; targets (batch, seq).
    """
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return total / tokens


def _vocab_parallel(mesh: DeviceMesh) -> AbstractContextManager[None]:
    return loss_parallel() if mesh["tp"].size() > 1 else contextlib.nullcontext()


def _plain(loss: torch.Tensor) -> torch.Tensor:
    return loss.to_local().detach() if isinstance(loss, DTensor) else loss.detach()


def _accumulate(
    model: Transformer, mesh: DeviceMesh, *, micro_batches: int, tokens: int
) -> ForwardBackward:
    """Micro-batches one after another; gradients cross the mesh once, with the last."""
    assert isinstance(model, FSDPModule)
    sharded: FSDPModule = model

    def forward_backward(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=inputs.device)
        pairs = list(zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True))
        for i, (x, y) in enumerate(pairs):
            last = i == len(pairs) - 1
            sharded.set_is_last_backward(last)
            sharded.set_requires_gradient_sync(last)
            with _vocab_parallel(mesh):
                loss = token_loss(model(x), y, tokens)
                torch.autograd.backward(loss)
            total += _plain(loss)
        return total

    return forward_backward


def _one_f_one_b(
    model: Transformer, mesh: DeviceMesh, *, micro_batches: int, tokens: int, device: torch.device
) -> ForwardBackward:
    """1F1B over the pp axis; Narayanan et al. 2021, arXiv:2104.04473."""
    pp = mesh["pp"]
    rank, stages = pp.get_local_rank(), pp.size()
    stage = PipelineStage(model, rank, stages, device, group=pp.get_group())
    schedule = Schedule1F1B(
        stage,
        micro_batches,
        loss_fn=lambda logits, targets: token_loss(logits, targets, tokens),
        scale_grads=False,
    )

    def forward_backward(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        first, last = rank == 0, rank == stages - 1
        with _vocab_parallel(mesh):
            schedule.step(
                *((inputs,) if first else ()),
                target=targets if last else None,
                losses=losses if last else None,
                return_outputs=False,
            )
        total = torch.zeros((), dtype=torch.float32, device=device)
        for loss in losses:
            total += _plain(loss)
        return total

    return forward_backward


def build(
    model: Transformer, mesh: DeviceMesh, *, micro_batches: int, tokens: int, device: torch.device
) -> ForwardBackward:
    """The function that takes one step's inputs and targets and leaves gradients behind.

    Both are int64 (rows of this rank, seq). It returns this rank's share of the mean loss over the
    `tokens` of the global batch, 0 where another pipeline stage knows it; ranks of one tp group
    return the same share.
    """
    if mesh["pp"].size() > 1:
        return _one_f_one_b(model, mesh, micro_batches=micro_batches, tokens=tokens, device=device)
    return _accumulate(model, mesh, micro_batches=micro_batches, tokens=tokens)
