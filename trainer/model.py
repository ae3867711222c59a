"""A decoder-only transformer: RMSNorm, rotary positions, SwiGLU; any slice of its layers.

A pipeline stage is the same class with fewer parts, so that a parameter has one name in every
layout, and its first value depends on the seed and that name alone.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from harness.trainer import seeding
from harness.trainer.config import VOCAB, Model


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

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        # -1: under tensor parallel only a part of the heads is here.
        batch, seq, _ = x.shape
        return x.view(batch, seq, -1, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.wq(x)), self._heads(self.wk(x)), self._heads(self.wv(x))
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU, Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.d_model, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.d_model, bias=False)
        self.w3 = nn.Linear(config.d_model, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.ffn = FeedForward(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class TiedHead(nn.Module):
    """Logits from the embedding's weight; a module, so that tensor parallel can plan for it."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class Transformer(nn.Module):
    """Blocks `first` to `last` (exclusive), with the embedding and head where they belong."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: Model, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = config.layers if last is None else last
        self.embed = nn.Embedding(VOCAB, config.d_model) if first == 0 else None
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(first, last)})
        self.norm: nn.Module | None = None
        self.head: nn.Module | None = None
        if last == config.layers:
            self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
            self.head = TiedHead() if config.tied else nn.Linear(config.d_model, VOCAB, bias=False)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(config.seq_len).float(), config.rope_base**-half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

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
        std = 1 / math.sqrt(parameter.shape[1])
        if name.endswith(("attention.wo.weight", "ffn.w2.weight")):
            std = 0.02 / math.sqrt(2 * config.layers)
        elif name == "head.weight" or (name == "embed.weight" and config.tied):
            std = 0.02
        elif name == "embed.weight":
            std = 0.2
        parameter.normal_(0.0, std, generator=seeding.generator(seed, "parameter", name))


def parameter_count(config: Model) -> int:
    """Parameters of the whole model, whatever part of it is here."""
    d = config.d_model
    block = 4 * d * d + 3 * d * config.hidden + 2 * d
    return config.layers * block + d + VOCAB * d * (1 if config.tied else 2)
