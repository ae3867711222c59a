"""Optimizers for very large batches: the step of each tensor in proportion to its own size.

PyTorch has neither. Both work on DTensors: norms are those of the whole tensor, and the ranks of a
mesh agree on all of them in one all-reduce for each of its axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def _local(x: torch.Tensor) -> torch.Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def norms(tensors: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Norm of each tensor as a whole; `tensors` are local parts, spread as those of `like` are."""
    squares = [tensor.double().square().sum() for tensor in tensors]
    by_mesh: dict[DeviceMesh, list[int]] = {}
    placements = {}
    for i, one in enumerate(like):
        if isinstance(one, DTensor):
            placements[i] = one.placements
            by_mesh.setdefault(one.device_mesh, []).append(i)
    for mesh, numbers in by_mesh.items():
        for axis in range(mesh.ndim):
            spread = [i for i in numbers if not placements[i][axis].is_replicate()]
            if spread and mesh.size(axis) > 1:
                vector = torch.stack([squares[i] for i in spread])
                dist.all_reduce(vector, group=mesh.get_group(axis))
                for i, value in zip(spread, vector.unbind(), strict=True):
                    squares[i] = value
    return [square.sqrt() for square in squares]


def _where_there_is_any(
    ratio: torch.Tensor, size: torch.Tensor, length: torch.Tensor
) -> torch.Tensor:
    """The ratio; 1 for a tensor or a direction that is all 0."""
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(size))


class _Layerwise(Optimizer):
    """A direction for every tensor, made as long as the rule says."""

    def _direction(
        self, group: dict[str, Any], grad: torch.Tensor, p: torch.Tensor, state: dict[str, Any]
    ) -> torch.Tensor:
        raise NotImplementedError

    def _ratio(
        self, group: dict[str, Any], size: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            here = [_local(p) for p in parameters]
            ways = [
                self._direction(group, _local(p.grad), _local(p), self.state[p]) for p in parameters
            ]
            if parameters[0].ndim > 1:
                sizes, lengths = norms(here, parameters), norms(ways, parameters)
                ratios = [self._ratio(group, s, w) for s, w in zip(sizes, lengths, strict=True)]
            else:  # the scales of norms take plain steps
                ratios = [torch.ones(()) for _ in here]
            for p, local, way, ratio in zip(parameters, here, ways, ratios, strict=True):
                self._move(group, local, way * ratio, self.state[p])

    def _move(
        self, group: dict[str, Any], p: torch.Tensor, way: torch.Tensor, state: dict[str, Any]
    ) -> None:
        p.add_(way.to(p.dtype), alpha=-group["lr"])


class Lamb(_Layerwise):
    """Adam with the length of the tensor. You et al. 2019, arXiv:1904.00962, algorithm 2."""

    def __init__(
        self,
        groups: Iterable[Mapping[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__([dict(g) for g in groups], {"lr": lr, "betas": betas, "eps": eps})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }

    def _direction(
        self, group: dict[str, Any], grad: torch.Tensor, p: torch.Tensor, state: dict[str, Any]
    ) -> torch.Tensor:
        one, two = group["betas"]
        mean, square = _local(state["exp_avg"]), _local(state["exp_avg_sq"])
        state["step"] += 1
        mean.lerp_(grad, 1 - one)
        square.lerp_(grad * grad, 1 - two)
        step = float(state["step"])
        denominator = (square / (1 - two**step)).sqrt_().add_(group["eps"])
        way: torch.Tensor = mean / (1 - one**step) / denominator + group["weight_decay"] * p
        return way

    def _ratio(
        self, group: dict[str, Any], size: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        return _where_there_is_any(size / length, size, length)


class Lars(_Layerwise):
    """SGD with momentum and a rate for each tensor. You et al. 2017, arXiv:1708.03888.

    Measured against the length of gradient and decay together; the paper adds their lengths.
    """

    def __init__(
        self,
        groups: Iterable[Mapping[str, Any]],
        *,
        lr: float,
        momentum: float,
        trust: float = 0.001,
    ) -> None:
        super().__init__(
            [dict(g) for g in groups], {"lr": lr, "momentum": momentum, "trust": trust}
        )
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"momentum_buffer": torch.zeros_like(p)}

    def _direction(
        self, group: dict[str, Any], grad: torch.Tensor, p: torch.Tensor, state: dict[str, Any]
    ) -> torch.Tensor:
        way: torch.Tensor = grad + group["weight_decay"] * p
        return way

    def _ratio(
        self, group: dict[str, Any], size: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        return _where_there_is_any(group["trust"] * size / length, size, length)

    def _move(
        self, group: dict[str, Any], p: torch.Tensor, way: torch.Tensor, state: dict[str, Any]
    ) -> None:
        momentum = _local(state["momentum_buffer"])
        momentum.mul_(group["momentum"]).add_(way.to(p.dtype))
        p.add_(momentum, alpha=-group["lr"])
