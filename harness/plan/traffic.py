"""What collectives cost: bytes that a GPU sends, and seconds by the alpha-beta model."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bytes/s one way for each GPU, and the seconds that a message takes to begin."""

    bandwidth: float
    latency: float = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes that each GPU sends (between nodes: `between`, a part of `sent`), and seconds."""

    sent: float
    between: float
    seconds: float


def ring_all_reduce(size: float, ranks: int, link: Link) -> Cost:
    """2 (N - 1) steps of size / N: best in bytes, 2 (N - 1) / N x size, but as many latencies as
    ranks. Patarasuk and Yuan 2009. `size` in bytes."""
    steps = 2 * (ranks - 1)
    sent = steps * size / ranks
    return Cost(sent=sent, between=sent, seconds=steps * link.latency + sent / link.bandwidth)


def tree_all_reduce(size: float, ranks: int, link: Link) -> Cost:
    """Up and down two complementary binary trees, in pieces: at most 2 x size sent, but only
    2 log2 N latencies. Sanders et al. 2009; what NCCL calls tree."""
    if ranks == 1:
        return Cost(sent=0.0, between=0.0, seconds=0.0)
    depth = math.ceil(math.log2(ranks))
    sent = 2 * size
    return Cost(sent=sent, between=sent, seconds=2 * depth * link.latency + sent / link.bandwidth)


def hierarchical_all_reduce(
    size: float, ranks: int, per_node: int, inside: Link, between: Link
) -> Cost:
    """Reduce-scatter in the node, ring over the nodes with 1 / per_node of the bytes on each GPU,
    all-gather in the node. `per_node` must divide `ranks` (ValueError)."""
    if ranks % per_node:
        raise ValueError(f"{ranks} ranks are not a multiple of {per_node} per node")
    local = ring_all_reduce(size, per_node, inside)
    across = ring_all_reduce(size / per_node, ranks // per_node, between)
    return Cost(
        sent=local.sent + across.sent,
        between=across.sent,
        seconds=local.seconds + across.seconds,
    )


def zero_traffic(parameters: float, *, dp: int, zero: int, passes: int = 1) -> float:
    """Bytes that a GPU sends for one step's data parallelism in 16 bit.

    One reduce-scatter and one all-gather of 2 bytes a parameter up to stage 1, together one
    all-reduce. Of `passes` micro-batches stage 2 reduces each; stage 3 also gathers before each
    forward and again before each backward pass: for one pass, 1.5 times as much. `parameters` as
    in `model_states`.
    """
    once = (dp - 1) / dp * 2 * parameters
    return once * {2: passes + 1, 3: 3 * passes}.get(zero, 2)


def tensor_parallel_traffic(
    *, seq: int, batch: int, hidden: int, layers: int, tp: int, cp: int = 1
) -> float:
    """Bytes that a GPU sends for one micro-batch: 2 all-reduces of s b h in 16 bit forward and 2
    backward a layer. Sequence parallel makes each a reduce-scatter and an all-gather of the same
    bytes. Shoeybi et al. 2019, arXiv:1909.08053."""
    return layers * 4 * 2 * (tp - 1) / tp * 2 * seq / cp * batch * hidden


def expert_parallel_traffic(
    *, seq: int, batch: int, hidden: int, layers: int, top_k: int, ep: int, tp: int = 1, cp: int = 1
) -> float:
    """Bytes that a GPU sends for one micro-batch: 2 all-to-alls forward and 2 backward a layer, of
    each of its tokens to `top_k` experts in 16 bit, of which 1 / ep are at home. Lepikhin et al.
    2020, arXiv:2006.16668."""
    return layers * 4 * (ep - 1) / ep * top_k * 2 * seq / (tp * cp) * batch * hidden


def ring_attention_traffic(
    *, seq: int, batch: int, hidden: int, layers: int, kv: float, cp: int, tp: int = 1
) -> float:
    """Bytes that a GPU sends for one micro-batch: keys and values in 16 bit go cp - 1 times on, in
    the backward pass with their gradients. `kv` is the share of key heads in all heads. Liu et al.
    2023, arXiv:2310.01889."""
    return layers * 3 * (cp - 1) * 2 * 2 * seq / (tp * cp) * batch * hidden * kv
