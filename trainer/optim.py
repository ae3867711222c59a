"""The optimizer, its learning rate as a function of the step, and one gradient norm for the whole
mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from harness.trainer.config import Optim
from harness.trainer.layerwise import Lamb, Lars


def learning_rate(config: Optim, step: int, *, batch: int = 0) -> float:
    """Rate of 1-based optimizer step `step`: linear warm-up, then down to min_lr * lr.

    cosine and linear go down over all steps that are left; wsd (warmup, stable, decay; Hu et al.
    2024, arXiv:2404.06395) only over its last ones; constant does not. `batch` is the global
    batch, for the scaling from `lr_batch`.
    """
    peak = config.lr
    if config.lr_batch and batch:
        times = batch / config.lr_batch
        peak *= math.sqrt(times) if config.lr_scaling == "sqrt" else times
    if step <= config.warmup:
        return peak * step / config.warmup
    begin = config.warmup
    if config.decay == "wsd":
        begin = max(begin, config.steps - (config.decay_steps or config.steps // 5))
    span = max(1, config.steps - begin)
    done = min(1.0, max(0.0, (step - begin) / span))
    if config.decay == "constant":
        return peak
    if config.decay == "cosine":
        share = config.min_lr + (1 - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
    else:
        share = 1 - (1 - config.min_lr) * done
    return peak * share


def build(parts: Iterable[nn.Module], config: Optim) -> torch.optim.Optimizer:
    """One optimizer over all parts on this rank; weight decay on matrices only."""
    parameters = [p for part in parts for p in part.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (config.beta1, config.beta2)
    match config.optimizer:
        case "lamb":
            return Lamb(groups, lr=config.lr, betas=betas, eps=config.eps)
        case "lars":
            return Lars(groups, lr=config.lr, momentum=config.momentum)
        case "sgd":
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def _gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, int]]:
    """Local part of every gradient, with the number of ranks that hold the same part."""
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is None:
                raise TypeError("a parameter without a gradient")
            if not isinstance(grad, DTensor):  # under DDP every rank holds all
                found.append((grad, dist.get_world_size()))
                continue
            copies = 1
            for axis, placement in enumerate(grad.placements):
                if placement.is_partial():
                    raise TypeError("a gradient was not reduced over the mesh")
                if placement.is_replicate():
                    copies *= grad.device_mesh.size(axis)
            found.append((grad.to_local(), copies))
    return found


def _squares(gradients: list[tuple[torch.Tensor, int]], device: torch.device) -> torch.Tensor:
    """This rank's share of the squared norm; summed over all ranks it is that of the model."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies in sorted({copies for _, copies in gradients}):
        same = [grad for grad, count in gradients if count == copies]
        total += nn.utils.get_total_norm(same).double() ** 2 / copies
    return total


@torch.no_grad()
def reduce_and_clip(
    optimizer: torch.optim.Optimizer, loss: torch.Tensor, clip: float, *, scale: float = 1.0
) -> tuple[float, float]:
    """Global loss and gradient norm (before clipping), the same on every rank.

    One all-reduce over all ranks carries both: this rank's share of the loss, and the squares of
    its gradients, each divided by the number of ranks that hold the same values. So it is right
    for any mix of meshes, pipeline stages included. `clip` 0 leaves the gradients alone; `scale` is
    what the loss was multiplied by, and is taken out. What is not finite comes back as it is.
    """
    gradients = _gradients(optimizer)
    totals = torch.zeros(2, dtype=torch.float64, device=loss.device)
    totals[0], totals[1] = loss, _squares(gradients, loss.device)
    dist.all_reduce(totals)
    mean, square = totals.tolist()
    norm = math.sqrt(square) / scale if square >= 0 else math.nan
    factor = clip / norm if clip and norm > clip else 1.0
    if factor / scale != 1.0 and math.isfinite(norm):
        torch._foreach_mul_([grad for grad, _ in gradients], factor / scale)
    return mean, norm


@torch.no_grad()
def squared_norm(optimizer: torch.optim.Optimizer, device: torch.device) -> float:
    """Of the gradients as they are now, over the whole mesh."""
    total = _squares(_gradients(optimizer), device)
    dist.all_reduce(total)
    return float(total)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Of parameters and optimizer state on this rank, and as many for gradients as for parameters:
    what a rank holds between steps and right before one, without gathered copies."""

    def size(tensor: torch.Tensor) -> int:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return local.numel() * local.element_size()

    parameters = (p for group in optimizer.param_groups for p in group["params"])
    kept = (value for state in optimizer.state.values() for value in state.values())
    # Single numbers, such as AdamW's count of steps, are no states.
    states = sum(size(value) for value in kept if torch.is_tensor(value) and value.numel() > 1)
    return 2 * sum(map(size, parameters)) + states


@dataclass(slots=True, kw_only=True)
class Noise:
    """The gradient noise scale, the batch (in tokens) above which more tokens buy few steps.

    McCandlish et al. 2018, arXiv:1812.06162, appendix A: from the squared norms of the gradient
    of a small and of a large batch, each averaged over the estimates so far before they are
    divided, since one alone is hardly more than chance.
    """

    decay: float = 0.9
    signal: float = 0.0
    spread: float = 0.0

    def note(self, small: float, of_small: float, large: float, of_large: float) -> float:
        """`of_small` and `of_large` are squared norms of mean gradients over so many tokens.

        Returns the scale in tokens; below 0 or infinite, too few estimates are in it.
        """
        signal = (large * of_large - small * of_small) / (large - small)
        spread = (of_small - of_large) / (1 / small - 1 / large)
        first = self.signal == self.spread == 0.0
        keep = 0.0 if first else self.decay
        self.signal = keep * self.signal + (1 - keep) * signal
        self.spread = keep * self.spread + (1 - keep) * spread
        return self.spread / self.signal if self.signal else math.inf
