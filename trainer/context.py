"""Context parallel: every rank of a cp group holds a part of each sequence, and its queries still
see all keys before them. Three ways to do it, each a drop-in for causal attention.

q, k, v are (batch, heads, seq / cp, head_dim) of this rank; so is what comes back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from harness.trainer.model import Core


def positions(method: str, rank: int, ranks: int, seq: int) -> torch.Tensor:
    """Which tokens of a sequence this rank holds, in its order; int64 (seq / ranks,).

    Ring: one piece from the head and its mirror image from the tail, so that the causal mask
    leaves every rank the same work (Llama 3, arXiv:2407.21783; "zigzag"). Otherwise one piece.
    """
    if method != "ring":
        return torch.arange(seq).chunk(ranks)[rank]
    pieces = torch.arange(seq).chunk(2 * ranks)
    return torch.cat((pieces[rank], pieces[2 * ranks - 1 - rank]))


def core(method: str, cp: DeviceMesh, seq: int) -> Core:
    """The attention that works over this cp group."""
    group = cp.get_group()
    if method == "ulysses":
        return lambda q, k, v: _ulysses(q, k, v, group)
    own = [positions(method, rank, cp.size(), seq) for rank in range(cp.size())]
    if method == "gather":
        mask = own[cp.get_local_rank()][:, None] >= torch.cat(own)[None, :]
        return lambda q, k, v: _gather(q, k, v, group, mask)

    def ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Ring.apply(q, k, v, group, own)  # type: ignore[no-untyped-call]
        return out

    return ring


def _exchange(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    out: torch.Tensor = funcol.all_to_all_single_autograd(x.contiguous(), None, None, group)
    return out


def _ulysses(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Swap sequence for heads, attend to whole sequences, swap back.

    Jacobs et al. 2023, arXiv:2309.14509. Heads on this rank must be a multiple of cp.
    """
    ranks = dist.get_world_size(group)
    batch, heads, seq, dim = q.shape
    here = heads // ranks
    # (3, batch, heads, seq, dim) -> the ranks that get these heads first
    packed = torch.stack((q, k, v)).view(3, batch, ranks, here, seq, dim).permute(2, 0, 1, 3, 4, 5)
    whole = _exchange(packed, group).permute(1, 2, 3, 0, 4, 5).reshape(3, batch, here, -1, dim)
    mixed = F.scaled_dot_product_attention(whole[0], whole[1], whole[2], is_causal=True)
    parts = mixed.view(batch, here, ranks, seq, dim).permute(2, 0, 1, 3, 4)
    return _exchange(parts, group).permute(1, 0, 2, 3, 4).reshape(batch, heads, seq, dim)


def _gather(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Gather all keys and values: one collective, and the memory of the whole sequence."""
    both = torch.stack((k, v)).movedim(3, 0).contiguous()  # (seq, 2, batch, heads, dim)
    # The name that torch 2.13 warns of is the only one that 2.11 has.
    gather = getattr(funcol, "all_gather_single_autograd", None)
    whole = (gather or funcol.all_gather_tensor_autograd)(both, 0, group)
    keys, values = whole.movedim(0, 3).unbind()
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask.to(q.device))


def _rotate(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Hand these to the next rank of the ring and take those of the one before."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    after = dist.get_global_rank(group, (rank + 1) % ranks)
    before = dist.get_global_rank(group, (rank - 1) % ranks)
    sent = torch.cat([tensor.reshape(-1) for tensor in tensors])
    got = torch.empty_like(sent)
    work = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, after, group), dist.P2POp(dist.irecv, got, before, group)]
    )
    for each in work:
        each.wait()
    parts = torch.split(got, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _mask(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
    """True where a query may look; None: everywhere."""
    if int(queries.min()) >= int(keys.max()):
        return None
    return queries[:, None] >= keys[None, :]


def _scores(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores if seen is None else scores.masked_fill(~seen.to(q.device), -math.inf)


def _pairs(
    queries: torch.Tensor, keys: torch.Tensor
) -> list[tuple[slice, slice, torch.Tensor | None]]:
    """Halves of the queries and of the keys between which anything is seen: of the four two, or
    three on the rank's own keys, which is what makes the ring's ranks equally busy."""
    half = len(queries) // 2
    halves = (slice(0, half), slice(half, None))
    return [
        (a, b, _mask(queries[a], keys[b]))
        for a in halves
        for b in halves
        if int(queries[a].max()) >= int(keys[b].min())
    ]


class _Ring(torch.autograd.Function):
    """Keys and values travel once around the ring; the softmax is kept running.

    Liu et al. 2023, arXiv:2310.01889. Sums are kept in single precision at least. In the backward
    pass the gradients of keys and values travel with them and arrive home.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        group: dist.ProcessGroup,
        own: list[torch.Tensor],
    ) -> torch.Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        wide = q if q.dtype == torch.float64 else q.float()
        out = torch.zeros_like(wide)
        most = torch.full(wide.shape[:-1], -math.inf, dtype=wide.dtype, device=q.device)
        total = torch.zeros_like(most)
        keys, values = k, v
        for turn in range(ranks):
            if turn:
                keys, values = _rotate([keys, values], group)
            for a, b, seen in _pairs(own[rank], own[(rank - turn) % ranks]):
                scores = _scores(wide[:, :, a], keys[:, :, b].to(wide.dtype), seen)
                # Turn 0 holds every query's own key, so `new` is finite from the start.
                new = torch.maximum(most[:, :, a], scores.amax(-1))
                shrink = torch.exp(most[:, :, a] - new)
                weight = torch.exp(scores - new[..., None])
                out[:, :, a] *= shrink[..., None]
                out[:, :, a] += weight @ values[:, :, b].to(wide.dtype)
                total[:, :, a] = total[:, :, a] * shrink + weight.sum(-1)
                most[:, :, a] = new
        out /= total[..., None]
        ctx.save_for_backward(q, k, v, out, most + total.log())
        ctx.group, ctx.own = group, own
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, out, logsum = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        wide, grad = q.to(out.dtype), grads[0].to(out.dtype)
        inner = (grad * out).sum(-1, keepdim=True)
        grad_q = torch.zeros_like(out)
        keys, values = k.to(out.dtype), v.to(out.dtype)
        grad_k, grad_v = torch.zeros_like(out), torch.zeros_like(out)
        root = math.sqrt(q.shape[-1])
        for turn in range(ranks):
            for a, b, seen in _pairs(ctx.own[rank], ctx.own[(rank - turn) % ranks]):
                scores = _scores(wide[:, :, a], keys[:, :, b], seen)
                weight = torch.exp(scores - logsum[:, :, a, None])
                grad_v[:, :, b] += weight.mT @ grad[:, :, a]
                through = weight * (grad[:, :, a] @ values[:, :, b].mT - inner[:, :, a]) / root
                grad_q[:, :, a] += through @ keys[:, :, b]
                grad_k[:, :, b] += through.mT @ wide[:, :, a]
            keys, values, grad_k, grad_v = _rotate([keys, values, grad_k, grad_v], ctx.group)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), None, None
