"""Number formats: what FSDP computes and reduces in, the loss scale of fp16, and linear layers in
8 bit.

Parameters, gradients after reduction and optimizer state are in single precision in all of them
(double in fp64): those are the master weights.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

COMPUTED_IN = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}


def policy(precision: str) -> MixedPrecisionPolicy:
    """Blocks are gathered and computed in 16 bit, gradients reduced in 32."""
    dtype = COMPUTED_IN[precision]
    if dtype.itemsize >= 4:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


@dataclass(slots=True, kw_only=True)
class LossScale:
    """Dynamic scale of the loss: halved when a step overflows, doubled after `patience` that did
    not. Micikevicius et al. 2017, arXiv:1710.03740. 1 and fixed unless the precision is fp16."""

    value: float = 1.0
    dynamic: bool = False
    patience: int = 2000
    good: int = 0

    def after(self, finite: bool) -> None:
        """Told by the norm over the whole mesh, so every rank does the same."""
        if not self.dynamic:
            return
        if not finite:
            self.value, self.good = max(1.0, self.value / 2), 0
            return
        self.good += 1
        if self.good == self.patience:
            self.value, self.good = self.value * 2, 0


_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_FORMATS = (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)  # input, weight, gradient
_ALIGNED = 16
"""Sizes of an 8-bit matrix product on a GPU are multiples of this."""


def _amax(x: torch.Tensor) -> torch.Tensor:
    local = x.to_local() if isinstance(x, DTensor) else x
    return local.detach().abs().max() if local.numel() else local.new_zeros(())


def hardware(device: torch.device) -> bool:
    """Whether the device multiplies in 8 bit: Ada, Hopper and later do."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def native(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether these are multiplied in 8 bit: not where the sizes do not fit, or as DTensors."""
    fits = not any(size % _ALIGNED for size in (*a.shape, *b.shape))
    return fits and not isinstance(a, DTensor) and hardware(a.device)


def _times(a: torch.Tensor, b: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """a b^T / scale of 8-bit a (m, k) and b (n, k), in `dtype`.

    Without hardware for it the same values are multiplied in `dtype`: all of them exist there, and
    sums are in single precision in both.
    """
    if native(a, b):
        whole = torch.full((), 1 / scale, device=a.device)
        one = torch.ones((), device=a.device)
        out: torch.Tensor = torch._scaled_mm(
            a.contiguous(), b.contiguous().t(), scale_a=whole, scale_b=one, out_dtype=dtype
        )
        return out
    product: torch.Tensor = a.to(dtype) @ b.to(dtype).t() / scale
    return product


class _Product(torch.autograd.Function):
    """x W^T with x, W and the gradient in 8 bit. What is kept for the backward pass is too."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Float8Linear
    ) -> torch.Tensor:
        (rows, one), (columns, two) = layer.rounded(0, x.flatten(0, -2)), layer.rounded(1, weight)
        ctx.save_for_backward(rows, columns)
        ctx.layer, ctx.scales, ctx.shape = layer, (one, two), x.shape
        return _times(rows, columns, one * two, x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        rows, columns = ctx.saved_tensors
        dtype = grads[0].dtype
        grad, scale = ctx.layer.rounded(2, grads[0].flatten(0, -2))
        one, two = ctx.scales
        grad_x = _times(grad, columns.t(), scale * two, dtype).view(ctx.shape)
        return grad_x, _times(grad.t(), rows.t(), scale * one, dtype), None


class Float8Linear(nn.Linear):
    """A linear layer in E4M3, its gradients in E5M2 (Micikevicius et al. 2022, arXiv:2209.05433).

    On a GPU that can, the products run in 8 bit; elsewhere, and under tensor parallel, the values
    are those of 8 bit and the products run in 16, which shows what the format does and saves no
    time.
    """

    name: str
    scales: Scales

    def rounded(self, kind: int, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        """x times a scale in its 8-bit format, and the scale; notes x's largest value for the steps
        to come."""
        amax = _amax(x)
        seen = self.scales.current.setdefault(self.name, [amax.new_zeros(()) for _ in range(3)])
        seen[kind] = torch.maximum(seen[kind], amax.to(seen[kind].dtype))
        top = self.scales.largest(self.name, kind) or float(amax)
        dtype = _FORMATS[kind]
        # A power of two changes no mantissa. What is not finite shows in the loss.
        usable = top > 0 and math.isfinite(top)
        scale = 2.0 ** math.floor(math.log2(_LARGEST[dtype] / top)) if usable else 1.0
        return (x.float() * scale).clamp(-_LARGEST[dtype], _LARGEST[dtype]).to(dtype), scale

    def forget(self) -> None:
        """What has passed in this step was none of the training."""
        self.scales.current.pop(self.name, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Product.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return out


@dataclass(slots=True)
class Scales:
    """Delayed scaling: the scale of each tensor comes from its largest values of the last steps,
    so it is known before the tensor is. Plain numbers, the same on every rank."""

    names: list[str] = field(default_factory=list)
    history: deque[dict[str, list[float]]] = field(default_factory=lambda: deque(maxlen=16))
    current: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def largest(self, name: str, kind: int) -> float:
        return max((past[name][kind] for past in self.history), default=0.0)

    def settle(self, device: torch.device) -> None:
        """At the end of a step: one all-reduce over all ranks, stages that lie elsewhere
        included."""
        table = torch.zeros(len(self.names), 3, device=device)
        for i, name in enumerate(self.names):
            if name in self.current:
                table[i] = torch.stack([each.float() for each in self.current[name]])
        self.current.clear()
        dist.all_reduce(table, op=dist.ReduceOp.MAX)
        self.history.append(dict(zip(self.names, table.tolist(), strict=True)))


def to_float8(parts: list[nn.Module], layers: int) -> Scales:
    """Exchange the linear layers of all blocks, in place; head and embedding stay as they are."""
    scales = Scales()
    kinds = [f"attention.w{letter}" for letter in "qkvo"] + ["ffn.w1", "ffn.w2", "ffn.w3"]
    scales.names = [f"layers.{i}.{kind}" for i in range(layers) for kind in kinds]
    for part in parts:
        for name, module in part.named_modules():
            if name in scales.names:
                assert isinstance(module, nn.Linear)
                module.__class__ = Float8Linear
                assert isinstance(module, Float8Linear)
                module.name, module.scales = name, scales
    return scales
