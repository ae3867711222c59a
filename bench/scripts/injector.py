"""Damage at a seeded step of a training that knows nothing of it (docs/masked.md, bench/sdc.py).

`arm` once in each rank before the training begins; the next call of `arm` ends what the one before
had planned. Everything drawn comes from `seed`, alike on all ranks.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import adam, optimizer

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
AFTER_STEP = ("parameter", "moment")
BEFORE_STEP = ("gradient", "all gradients", "learning rate")
COMPUTED = ("activation", "local gradient", "stuck lane", "nan", "noise")
EVERYWHERE = ("all gradients", "noise")
UPDATED = ("update",)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`where` is a kind above; `pattern`: bit, group (four neighbours) or stride (each 32nd).

    `step` counts the optimizer's steps from 1. Of what is computed, `share` of the calls of linear
    layers from `step` on is damaged; 0: only call number `call` of that step. Of updates: all from
    `step` on, or the one of a single parameter.
    """

    where: str
    rank: int
    step: int
    seed: int = 0
    pattern: str = "bit"
    bit: int | None = None
    share: float = 0.0
    call: int = 0


_fault: Fault | None = None
_draw = random.Random(0)
_steps = 0
_depth = 0
_now = 1
"""The step that is being computed; checks that compute something again before the optimizer steps
are within it."""
_calls = 0
_trained: set[int] = set()
"""Ids of parameters: what checks compute again is left alone."""


def arm(fault: Fault | None) -> None:
    """Plan `fault` for the training that begins now; None: nothing."""
    global _fault, _draw, _steps, _now, _calls  # noqa: PLW0603
    if _fault is None:
        _install()
    _fault = fault or Fault(where="nowhere", rank=-1, step=0)
    _draw = random.Random(_fault.seed)
    _steps, _now, _calls = 0, 1, 0


def spoil(tensor: torch.Tensor, fault: Fault) -> None:
    """Flip bits of what this rank holds of `tensor`."""
    own = getattr(tensor, "_local_tensor", tensor).detach()
    words = own.view(-1).view(BITS[own.element_size()])
    if not words.numel():
        return
    first = _draw.randrange(words.numel())
    bit = _draw.randrange(8 * own.element_size()) if fault.bit is None else fault.bit
    count = {"bit": 1, "group": 4, "stride": 1 << 30}[fault.pattern]
    apart = 32 if fault.pattern == "stride" else 1
    mask = 1 << bit
    mask -= (1 << 8 * own.element_size()) if bit == 8 * own.element_size() - 1 else 0
    for at in range(first, min(words.numel(), first + apart * count), apart):
        words[at] ^= mask


def _install() -> None:
    """After Harness has set its hooks: gradients are damaged before it looks, the rest after."""
    before = optimizer.register_optimizer_step_pre_hook(_stepping)
    optimizer._global_optimizer_pre_hooks.move_to_end(before.id, last=False)
    optimizer.register_optimizer_step_post_hook(_stepped)
    linear, update = torch.nn.functional.linear, adam.adam
    torch.nn.functional.linear = lambda *args: _linear(linear, *args)
    adam.adam = lambda *args, **kwargs: _update(update, *args, **kwargs)


def _mine(*kinds: str) -> Fault | None:
    fault = _fault
    if fault is None or fault.where not in kinds:
        return None
    return fault if fault.rank == dist.get_rank() or fault.where in EVERYWHERE else None


def _stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _depth, _steps  # noqa: PLW0603
    _depth += 1
    _trained.update(id(p) for group in optimizer.param_groups for p in group["params"])
    if _depth > 1:
        return  # within another optimizer's step
    _steps += 1
    fault = _mine(*BEFORE_STEP)
    if fault is None or _steps != fault.step:
        return
    if fault.where == "learning rate":  # of this rank's program alone: no device does that
        for group in optimizer.param_groups:
            group["lr"] *= 2
    else:
        spoil(_draw.choice(_of(optimizer)).grad, fault)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _depth, _now, _calls  # noqa: PLW0603
    _depth -= 1
    if _depth:
        return
    _now, _calls = _steps + 1, 0
    fault = _mine(*AFTER_STEP)
    if fault is None or _steps != fault.step:
        return
    parameter = _draw.choice(_of(optimizer))
    if fault.where == "moment":
        name = _draw.choice(("exp_avg", "exp_avg_sq"))
        spoil(optimizer.state[parameter][name], fault)
    else:
        spoil(parameter, fault)


def _of(optimizer: Any) -> list[Any]:
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in every if getattr(p, "_local_tensor", p).numel() and p.grad is not None]


class _Flip(torch.autograd.Function):
    """The same values, but for a bit on the way there or on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ahead: Any, back: Any) -> torch.Tensor:
        ctx.back, x = back, x.clone()
        if ahead is not None:
            ahead(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].clone()
        if ctx.back is not None:
            ctx.back(gradient)
        return gradient, None, None


def _linear(original: Callable[..., Any], x: Any, weight: Any, bias: Any = None) -> Any:
    global _calls  # noqa: PLW0603
    _calls += 1
    fault = _mine(*COMPUTED)
    if fault is None or not _fires(fault):
        return original(x, weight, bias)
    if fault.where == "local gradient":
        return original(x, _Flip.apply(weight, None, lambda t: spoil(t, fault)), bias)
    out = original(x, weight, bias)
    if hasattr(out, "_local_tensor"):  # a copy of a partial sum would be the whole sum
        _damage(out, fault)
        return out
    return _Flip.apply(out, lambda t: _damage(t, fault), None)


def _fires(fault: Fault) -> bool:
    if fault.share:
        return _now >= fault.step and (fault.share >= 1 or _draw.random() < fault.share)
    return _now == fault.step and _calls == fault.call


def _damage(out: torch.Tensor, fault: Fault) -> None:
    if fault.where == "nan":
        out.view(-1)[0] = float("nan")
    elif fault.where == "stuck lane":
        out.view(torch.int32)[..., 3] |= 1 << (20 if fault.bit is None else fault.bit)
    elif fault.where == "noise":
        out *= 1 + 0.01 * random.random()  # nobody restores these random numbers
    else:
        spoil(out, fault)


def _update(original: Callable[..., Any], parameters: list[Any], *args: Any, **kwargs: Any) -> None:
    original(parameters, *args, **kwargs)
    fault = _mine(*UPDATED)
    own = [p for p in parameters if id(p) in _trained and getattr(p, "_local_tensor", p).numel()]
    if fault is None or not own:
        return
    if fault.share and _steps >= fault.step:
        for parameter in own:
            spoil(parameter, fault)
    elif _steps == fault.step:
        spoil(_draw.choice(own), fault)
