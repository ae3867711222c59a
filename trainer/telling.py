"""What a training says of itself: what it is, and one line for each step."""

from __future__ import annotations

from dataclasses import dataclass

from harness.trainer.compose import stages
from harness.trainer.config import Config, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One completed optimizer step: global mean loss per token, gradient norm before clipping.

    What follows tokens_per_s is of this rank, or None where it was not asked for or is not there.
    Shares are of the step's time.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_s: float
    data_wait: float | None = None
    exposed: float | None = None
    bubble: float | None = None
    state_bytes: int | None = None
    peak_bytes: int | None = None
    noise_tokens: float | None = None
    expert_load: float | None = None
    dropped: float | None = None
    loss_scale: float | None = None
    skipped: bool = False


def headline(*, parameters: int, tokens: int, device: str, sizes: Layout) -> str:
    """What is trained and where; `tokens` are those of a step."""
    more = f" x cp {sizes.cp}" if sizes.cp > 1 else ""
    more += f", ep {sizes.ep}" if sizes.ep > 1 else ""
    return (
        f"{parameters:,} parameters, {tokens:,} tokens a step, {sizes.ranks} ranks on {device}: "
        f"pp {sizes.pp} x dp {sizes.dp} (replicate {sizes.dp_replicate} x shard {sizes.dp_shard}) "
        f"x tp {sizes.tp}{more}"
    )


def line(done: Step, config: Config, active: int, peak: float | None) -> str:
    """What rank 0 prints of a step; `active` parameters meet a token, `peak` FLOP/s in all."""
    text = (
        f"step {done.step}/{config.optim.steps} loss {done.loss:.4f} lr {done.lr:.2e} "
        f"grad_norm {done.grad_norm:.3f} tok/s {done.tokens_per_s:.0f}"
    )
    if peak:
        # 6 FLOPs per parameter and token: PaLM, arXiv:2204.02311, without its attention term.
        used = 6 * active * done.tokens_per_s / peak
        text += f" mfu {used:.3g}"
        if config.memory.recompute == "full":
            text += f" hfu {used * 8 / 6:.3g}"
    if done.bubble is not None:
        pp, m = config.parallel.pp, config.parallel.micro_batches
        chunks = stages(config) // pp
        text += f" bubble {done.bubble:.2f} (formula {(pp - 1) / (chunks * m + pp - 1):.2f})"
    for name, value in (("data", done.data_wait), ("exposed", done.exposed)):
        text += "" if value is None else f" {name} {value:.1%}"
    for name, size in (("states", done.state_bytes), ("peak", done.peak_bytes)):
        text += "" if size is None else f" {name} {size / 2**20:.1f} MiB"
    if done.noise_tokens is not None:
        text += f" noise {done.noise_tokens:.0f} tokens"
    if done.expert_load is not None:
        text += f" load {done.expert_load:.2f}"
        text += f" dropped {done.dropped:.1%}" if config.experts.capacity else ""
    if done.loss_scale is not None:
        text += f" scale {done.loss_scale:.0f}" + (" overflow, not taken" if done.skipped else "")
    return text
