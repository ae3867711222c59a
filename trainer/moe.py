"""Mixture of experts: a router, experts that may lie on other ranks, and what evens their loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from harness.trainer.config import Experts, Model
from harness.trainer.ffn import FeedForward

Choice = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Sees the scores (batch, seq, experts) and the best experts (batch, seq, top_k), and chooses."""


class Bank(nn.Module):
    """SwiGLU experts in three tensors, (experts, out, in); under expert parallel a part of them."""

    def __init__(self, config: Model, experts: int) -> None:
        super().__init__()
        d, hidden = config.d_model, config.hidden
        self.w1 = nn.Parameter(torch.empty(experts, hidden, d))
        self.w2 = nn.Parameter(torch.empty(experts, d, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, hidden, d))

    def forward(self, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """x (tokens, d), sorted by expert; counts[i] of them are for the i-th expert here."""
        w1, w2, w3 = (
            w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2, self.w3)
        )
        # An expert without tokens computes on none, so that its gradient is zero and not missing.
        parts = [
            F.linear(F.silu(F.linear(part, w1[i])) * F.linear(part, w3[i]), w2[i])
            for i, part in enumerate(torch.split(x, counts))
        ]
        return torch.cat(parts)


class _Beside(torch.autograd.Function):
    """Passes x on and gives `loss` a gradient of `scale`, as if it had been added to the loss:
    it need not travel through a pipeline to get there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale, ctx.like = scale, loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], torch.full_like(ctx.like, ctx.scale), None


class Mixture(nn.Module):
    """In place of a feed-forward layer. All sums are over tokens, so any layout gives the same."""

    bias: torch.Tensor

    def __init__(self, config: Model, experts: Experts) -> None:
        super().__init__()
        self.settings = experts
        self.router = nn.Linear(config.d_model, experts.experts, bias=False)
        self.experts = Bank(config, experts.experts)
        self.shared = FeedForward(config) if experts.shared else None
        self.register_buffer("bias", torch.zeros(experts.experts), persistent=True)
        # No buffer: ranks differ in it within a step, and buffers are held to be alike.
        self.loads = torch.zeros(experts.experts + 1, device="cpu")
        """Tokens for each expert in this step so far, and those that found no place."""
        self.loss_scale = 0.0
        """What the balance loss of a sequence counts: 1 / sequences of a step, from the runner."""
        self.group: dist.ProcessGroup | None = None
        """The ranks that the experts are spread over."""
        self.sequence_groups: list[dist.ProcessGroup] = []
        """Groups over which one sequence is spread, by tensor and context parallel."""
        self.choice: Choice | None = None
        """In place of the best; for proofs, see routes.py."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, seq, d), the part of the sequences that is here."""
        weights, chosen = self._route(x)
        if self.settings.balance == "loss" and self.loss_scale:
            x = self._balanced(x, weights, chosen)
        share = weights.gather(-1, chosen)
        if self.settings.top_k > 1:
            share = share / share.sum(-1, keepdim=True)
        # Of one expert the share would always be 1, and the router learn nothing: it counts by its
        # probability, as in the Switch Transformer (Fedus et al. 2021, arXiv:2101.03961).
        kept = self._kept(chosen)
        with torch.no_grad():
            self.loads = self.loads.to(x.device)
            self.loads[:-1] += F.one_hot(chosen, len(self.bias)).sum((0, 1, 2))
            self.loads[-1] += (~kept).sum()
        out = self._through_experts(x.flatten(0, 1), chosen.flatten(), kept.flatten())
        out = out.view(*chosen.shape, -1) * share[..., None].to(out.dtype)
        mixed = out.sum(2)
        return mixed if self.shared is None else mixed + self.shared(x)

    def forget(self) -> None:
        """What has passed in this step was none of the training."""
        self.loads.zero_()

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities (batch, seq, experts) and the chosen experts (batch, seq, top_k)."""
        logits = self.router(x)
        weights = F.softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
        # The bias has a say in who is chosen, not in how much that one counts (Wang et al. 2024,
        # arXiv:2408.15664).
        scores = weights.detach() + self.bias
        chosen = scores.topk(self.settings.top_k, -1).indices
        return weights, chosen if self.choice is None else self.choice(scores, chosen)

    def _balanced(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Adds the balance loss, experts x sum of (share of tokens x mean probability), of every
        sequence (Fedus et al. 2021, arXiv:2101.03961; by sequence as in DeepSeek-V3)."""
        count = weights.shape[-1]
        with torch.no_grad():
            tokens = F.one_hot(chosen, count).sum((1, 2)).to(weights.dtype)  # (batch, experts)
            for group in self.sequence_groups:
                dist.all_reduce(tokens, group=group)
            share = tokens / tokens.sum(-1, keepdim=True)
            length = tokens[0].sum() / self.settings.top_k
        loss = (share * weights.sum(1)).sum() * count / length * self.settings.balance_weight
        beside: torch.Tensor = _Beside.apply(x, loss, self.loss_scale)  # type: ignore[no-untyped-call]
        return beside

    def _kept(self, chosen: torch.Tensor) -> torch.Tensor:
        """False where a token finds no place: an expert takes so many of each sequence, the first
        to come. (batch, seq, top_k)"""
        if not self.settings.capacity:
            return torch.ones_like(chosen, dtype=torch.bool)
        _, seq, top_k = chosen.shape
        even = seq * top_k / self.settings.experts
        places = math.ceil(self.settings.capacity * even)
        taken = F.one_hot(chosen.flatten(1), self.settings.experts).cumsum(1)
        before = taken.gather(-1, chosen.flatten(1)[..., None]).view_as(chosen)
        return before <= places

    def _through_experts(
        self, x: torch.Tensor, chosen: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        """x (tokens, d) to (tokens x top_k, d); rows that were not kept are 0."""
        top_k, count = self.settings.top_k, self.settings.experts
        order = torch.argsort(torch.where(kept, chosen, count), stable=True)[: int(kept.sum())]
        counts = F.one_hot(chosen[order], count).sum(0)
        sent = x[order // top_k]
        if self.group is None or dist.get_world_size(self.group) == 1:
            done = self.experts(sent, counts.tolist())
        else:
            done = self._exchanged(sent, counts, self.group)
        out = torch.zeros(len(chosen), x.shape[-1], dtype=done.dtype, device=x.device)
        return out.index_copy(0, order, done)

    def _exchanged(
        self, x: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        """Tokens to the ranks of their experts and back: two all-to-alls of uneven parts."""
        ranks = dist.get_world_size(group)
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts, group=group)
        going, by_rank = counts.view(ranks, -1).sum(1).tolist(), coming.view(ranks, -1)
        arriving = by_rank.sum(1).tolist()
        got = funcol.all_to_all_single_autograd(x, arriving, going, group)
        # They come by rank, each by expert; the experts take them by expert.
        expert = torch.arange(by_rank.shape[1], device=x.device).repeat(ranks)
        order = torch.argsort(expert.repeat_interleave(coming), stable=True)
        done = self.experts(got[order], by_rank.sum(0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        home: torch.Tensor = funcol.all_to_all_single_autograd(done[back], going, arriving, group)
        return home


def mixtures(parts: Iterable[nn.Module]) -> dict[int, Mixture]:
    """All of them here, by number of their block."""
    return {
        int(name): block.ffn
        for part in parts
        for name, block in part.layers.items()  # type: ignore[operator,union-attr]
        if isinstance(block.ffn, Mixture)
    }


@torch.no_grad()
def settle(
    parts: list[nn.Module], layers: int, experts: int, device: torch.device
) -> tuple[float, float]:
    """At the end of a step: even the loads by the bias, if that is the way, and begin anew.

    Returns the load of the fullest expert over the mean one (of the worst layer), and the share of
    choices that found no place. One all-reduce over all ranks.
    """
    here = mixtures(parts)  # none on a pipeline stage without blocks
    table = torch.zeros(layers, experts + 1, device=device)
    for number, mixture in here.items():
        table[number] = mixture.loads
        mixture.loads.zero_()
    dist.all_reduce(table)
    loads, dropped = table[:, :-1], table[:, -1].sum()
    mean = loads.mean(1, keepdim=True)
    for number, mixture in here.items():
        if mixture.settings.balance == "bias":
            step = mixture.settings.balance_weight * torch.sign(mean[number] - loads[number])
            mixture.bias += step.to(mixture.bias.dtype)
    return float((loads.amax(1) / mean[:, 0]).max()), float(dropped / loads.sum())
