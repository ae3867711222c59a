"""The feed-forward layer of a block, and of an expert that every token goes to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from harness.trainer.config import Model


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
