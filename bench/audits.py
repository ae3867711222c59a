"""What the checks of a rank's own numbers cost: `python bench/audits.py [--steps N] [--share S]`.

One training in one process, as the checks talk to nobody; they are at work in every other window of
steps. The figure is the CPU time of the main thread, a window with them against the one before it
without: wall time says little on a machine that others use. A replay is counted apart: it is one
forward and backward pass more, once in `--replays` steps or less often.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as real
from torch import nn

from harness.worker.audits.gradients import LocalGradients
from harness.worker.audits.names import named_parameters
from harness.worker.audits.recompute import Recomputes, watch_checkpoints

_WIDTH, _DEPTH, _BATCH, _WINDOW = 384, 5, 32, 4
_SETTLING = 2
"""Pairs of windows that are not counted: plans are made, the stride is found."""


class Net(nn.Module):
    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self._compute = compute
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
            for _ in range(_DEPTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self._compute(layer, x)
        return x


def measure(kept: bool, steps: int, share: float) -> str:
    """One line of results."""
    on = [False]

    spent = [0.0]
    """By the checks' own count, which what others do to the caches blurs less."""

    def guard(check: Callable[..., None], *arguments: Any) -> None:
        began = time.thread_time()
        if on[0]:
            check(*arguments)
            spent[0] += time.thread_time() - began

    gradients = LocalGradients(print, guard, lambda: 0, share)
    earned = [0.0]
    """Processor time of the windows with checks: the others must not pay for them."""
    blocks = Recomputes(print, guard, lambda: 0, lambda: 0, share, lambda: earned[0])

    class Module:
        checkpoint = staticmethod(real.checkpoint)

    charge = blocks.charge

    def charged(seconds: float) -> None:
        spent[0] += seconds
        charge(seconds)

    blocks.charge = charged  # type: ignore[method-assign]
    watch_checkpoints(Module, lambda: blocks if on[0] else None)
    model = Net(
        (lambda layer, x: layer(x))
        if kept
        else (lambda layer, x: Module.checkpoint(layer, x, use_reentrant=False))
    )
    gradients.attach(named_parameters(list(model.parameters())))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    costs = []
    settled = 0.0, 0.0
    for window in range(steps // _WINDOW // 2 * 2):
        if window == 2 * _SETTLING:
            settled = spent[0], earned[0]
        on[0] = bool(window % 2)
        began = time.thread_time()
        last = began
        for _ in range(_WINDOW):
            at = time.thread_time()
            earned[0] += at - last if on[0] else 0.0
            last = at
            optimizer.zero_grad()
            model(torch.randn(_BATCH, _WIDTH, requires_grad=True)).square().mean().backward()
            guard(gradients.stepping)
            optimizer.step()
            guard(gradients.stepped)
        earned[0] += time.thread_time() - last if on[0] else 0.0
        costs.append((time.thread_time() - began) / _WINDOW)
    pairs = [b / a - 1 for a, b in zip(costs[::2], costs[1::2], strict=True)][_SETTLING:]
    low, middle, high = statistics.quantiles(pairs, n=4)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return (
        f"{'plain' if kept else 'checkpointed'}: {size:.1f} M parameters,"
        f" {statistics.median(costs) * 1e3:.0f} ms of CPU a step, {len(pairs)} pairs:"
        f" {middle:+.2%}, quartiles {low:+.2%} and {high:+.2%}; the checks themselves took"
        f" {(spent[0] - settled[0]) / (earned[0] - settled[1]):.2%}; {blocks.looks} blocks compared"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--share", type=float, default=0.003)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for kept in (True, False):
        print(measure(kept, asked.steps, asked.share), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
