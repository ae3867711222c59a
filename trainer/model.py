"""A decoder-only transformer: RMSNorm, rotary positions, SwiGLU; any slice of its layers.

A pipeline stage is the same class with fewer parts, so that a parameter has one name in every
layout, and its first value depends on the seed and that name alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from harness.trainer import seeding
from harness.trainer.config import Experts, Model
from harness.trainer.ffn import FeedForward
from harness.trainer.moe import Mixture

Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of q, k, v, each (batch, heads, seq, head_dim), to the same shape."""

KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)
"""What selective recomputation keeps: the expensive ones."""


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x (batch, heads, seq, head_dim) by the angles of its positions (seq, head_dim / 2).

    Su et al. 2021, arXiv:2104.09864, in the half-split form.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.d_model, config.d_model, bias=False)
        self.wk = nn.Linear(config.d_model, config.d_model, bias=False)
        self.wv = nn.Linear(config.d_model, config.d_model, bias=False)
        self.wo = nn.Linear(config.d_model, config.d_model, bias=False)
        self.core: Core = causal

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        # -1: under tensor parallel only a part of the heads is here.
        batch, seq, _ = x.shape
        return x.view(batch, seq, -1, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.wq(x)), self._heads(self.wk(x)), self._heads(self.wv(x))
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        mixed = self.core(q, k, v)
        out: torch.Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self, config: Model, experts: Experts) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.ffn = Mixture(config, experts) if experts.experts else FeedForward(config)
        self.recompute = "none"

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        # Inside the module: what fully_shard does around a block is then not done twice.
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._forward(x, cos, sin)
        more: dict[str, Any] = {"use_reentrant": False}
        if self.recompute == "selective":
            more["context_fn"] = partial(create_selective_checkpoint_contexts, list(KEPT))
        out: torch.Tensor = checkpoint(self._forward, x, cos, sin, **more)
        return out

    def _forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class TiedHead(nn.Module):
    """Logits from the embedding's weight; a module, so that tensor parallel can plan for it."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class Transformer(nn.Module):
    """Blocks `first` to `last` (exclusive), none if they are the same, with the embedding and head
    where they belong."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self,
        config: Model,
        first: int = 0,
        last: int | None = None,
        *,
        begins: bool = True,
        ends: bool = True,
        experts: Experts | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """`begins` with the embedding, `ends` with the head; `positions` are the tokens of a
        sequence that come here; None: all."""
        super().__init__()
        mixture = experts or Experts()
        last = config.layers if last is None else last
        self.embed = nn.Embedding(config.vocab, config.d_model) if begins else None
        self.layers = nn.ModuleDict({str(i): Block(config, mixture) for i in range(first, last)})
        self.norm: nn.Module | None = None
        self.head: nn.Module | None = None
        if ends:
            self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
            self.head = (
                TiedHead() if config.tied else nn.Linear(config.d_model, config.vocab, bias=False)
            )
        self._angles = (config.head_dim, config.rope_base)
        whole = torch.arange(config.seq_len, device="cpu")
        self._positions = whole if positions is None else positions
        cos, sin = self._rotation()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _rotation(self) -> tuple[torch.Tensor, torch.Tensor]:
        head_dim, base = self._angles
        half = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        angles = torch.outer(self._positions.float(), base**-half)
        return angles.cos(), angles.sin()

    @torch.no_grad()
    def fill_buffers(self, device: torch.device) -> None:
        """What to_empty has left undefined. Buffers are on the device also where parameters rest in
        the CPU's memory."""
        self.cos, self.sin = (value.to(device) for value in self._rotation())
        for module in self.modules():
            if isinstance(module, Mixture):
                module.bias = torch.zeros_like(module.bias, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (batch, seq) or activations (batch, seq, d_model) to activations or logits."""
        if self.embed is not None:
            x = self.embed(x)
        for block in self.layers.values():
            x = block(x, self.cos, self.sin)
        if self.norm is not None:
            x = self.norm(x)
        if isinstance(self.head, TiedHead):
            assert self.embed is not None
            x = self.head(x, self.embed.weight)
        elif self.head is not None:
            x = self.head(x)
        return x


@torch.no_grad()
def initialise(model: Transformer, config: Model, seed: int) -> None:
    """Fill the parameters; each depends on the seed and its name only, not on the layout.

    Norms are 1. Matrices are N(0, 1 / fan-in), but what adds to the residual stream (wo, w2)
    starts at GPT-2's 0.02 / sqrt(2 layers), so that a block begins as nearly nothing. The head
    is N(0, 0.02): the first loss is ln 256. The embedding is N(0, 0.2) unless it is the head
    too: at 0.02, RMSNorm would magnify its gradients by 50.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0)
            continue
        std = 1 / math.sqrt(parameter.shape[-1])
        if name.endswith(
            ("attention.wo.weight", "ffn.w2.weight", "experts.w2", "shared.w2.weight")
        ):
            std = 0.02 / math.sqrt(2 * config.layers)
        elif name == "head.weight" or (name == "embed.weight" and config.tied):
            std = 0.02
        elif name == "embed.weight":
            std = 0.2
        _draw(parameter, std, seeding.generator(seed, "parameter", name))


def _draw(parameter: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """The same values whether the parameter is whole, or only a part of it lies here."""
    if not isinstance(parameter, DTensor):
        parameter.normal_(0.0, std, generator=generator)
        return
    # Drawn in single precision always: other formats take other numbers from the generator.
    whole = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
    part = distribute_tensor(
        whole.to(parameter.device, parameter.dtype),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,
    )
    parameter.to_local().copy_(part.to_local())


def parameter_count(config: Model, experts: Experts | None = None) -> int:
    """Parameters of the whole model, whatever part of it is here."""
    mixture = experts or Experts()
    return _count(config, mixture, mixture.experts)


def active_count(config: Model, experts: Experts) -> int:
    """Parameters that one token meets: of the experts only those it is sent to."""
    return _count(config, experts, experts.top_k)


def _count(config: Model, mixture: Experts, experts: int) -> int:
    d = config.d_model
    ffn = 3 * d * config.hidden
    if mixture.experts:
        ffn = ffn * (experts + mixture.shared) + d * mixture.experts
    block = 4 * d * d + ffn + 2 * d
    return config.layers * block + d + config.vocab * d * (1 if config.tied else 2)
