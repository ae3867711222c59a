"""AdamW, its learning rate as a function of the step, and one gradient norm for the whole mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from harness.trainer.config import Optim


def learning_rate(config: Optim, step: int) -> float:
    """Rate of 1-based optimizer step `step`: linear warm-up, then a cosine to min_lr * lr."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    span = max(1, config.steps - config.warmup)
    done = min(1.0, (step - config.warmup) / span)
    share = config.min_lr + (1 - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * share


def adamw(parts: Iterable[nn.Module], config: Optim) -> torch.optim.AdamW:
    """One optimizer over all parts on this rank; weight decay on matrices only."""
    parameters = [p for part in parts for p in part.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def _gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, int]]:
    """Local part of every gradient, with the number of ranks that hold the same part."""
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if not isinstance(grad, DTensor):
                raise TypeError("a parameter outside fully_shard, or one without a gradient")
            copies = 1
            for axis, placement in enumerate(grad.placements):
                if placement.is_partial():
                    raise TypeError("a gradient was not reduced over the mesh")
                if placement.is_replicate():
                    copies *= grad.device_mesh.size(axis)
            found.append((grad.to_local(), copies))
    return found


@torch.no_grad()
def reduce_and_clip(
    optimizer: torch.optim.Optimizer, loss: torch.Tensor, clip: float
) -> tuple[float, float]:
    """Global loss and gradient norm (before clipping), the same on every rank.

    One all-reduce over all ranks carries both: this rank's share of the loss, and the squares of
    its gradients, each divided by the number of ranks that hold the same values. So it is right
    for any mix of meshes, pipeline stages included. `clip` 0 leaves the gradients alone. What is
    not finite comes back as it is.
    """
    gradients = _gradients(optimizer)
    totals = torch.zeros(2, dtype=torch.float64, device=loss.device)
    totals[0] = loss
    for copies in sorted({copies for _, copies in gradients}):
        same = [grad for grad, count in gradients if count == copies]
        totals[1] += nn.utils.get_total_norm(same).double() ** 2 / copies
    dist.all_reduce(totals)
    mean, square = totals.tolist()
    norm = math.sqrt(square) if square >= 0 else math.nan
    if clip and norm > clip:
        torch._foreach_mul_([grad for grad, _ in gradients], clip / norm)
    return mean, norm
