"""What an optimizer did to a few elements of a parameter, computed again from what went into it.

Adam, AdamW and SGD of PyTorch treat each element by itself, and give the same bits for a slice as
for the whole, in each of their implementations (one tensor at a time, foreach, fused).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from harness.digest.words import bits, local

_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_OPTIONS = {
    "adam": ("betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "fused"),
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "fused"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What goes into the update of elements `begin` to `end` of a parameter, in the order of
    memory. `tensors` are copies: parameter, gradient, and the optimizer's state."""

    kind: str
    options: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    begin: int
    end: int


def capture(optimizer: Any, parameter: Any, begin: int, end: int) -> Update | None:
    """What the step that is about to be made takes in; None where it cannot be computed again."""
    group = next(
        (g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None
    )
    kind = _kind(optimizer)
    if group is None or not kind or not isinstance(group["lr"], float | int):
        return None
    if group.get("capturable") or group.get("differentiable"):
        return None
    found = _tensors(kind, optimizer.state.get(parameter), parameter, group)
    if found is None or not 0 <= begin < end <= local(parameter).numel():
        return None
    options = {name: group.get(name) for name in _OPTIONS[kind]}
    decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
    return Update(
        kind=kind,
        options={**options, "lr": float(group["lr"]), "decoupled": decoupled},
        tensors={
            name: (each if each.dim() == 0 else each.view(-1)[begin:end]).clone()
            for name, each in found.items()
        },
        begin=begin,
        end=end,
    )


def _kind(optimizer: Any) -> str:
    """Subclasses may do anything; so may hooks, and what scales gradients within the step."""
    if getattr(optimizer, "grad_scale", None) is not None:
        return ""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return ""
    kinds = {torch.optim.Adam: "adam", torch.optim.AdamW: "adam", torch.optim.SGD: "sgd"}
    return kinds.get(type(optimizer), "")


def _tensors(
    kind: str, state: Any, parameter: Any, group: Mapping[str, Any]
) -> dict[str, torch.Tensor] | None:
    """Parameter, gradient and state as this rank holds them; None before the first step, and where
    their elements do not stand in one order."""
    if parameter.grad is None or parameter.grad.is_sparse or not parameter.is_floating_point():
        return None
    found = {"parameter": local(parameter), "gradient": local(parameter.grad)}
    state = state if isinstance(state, dict) else {}
    if kind == "adam":
        names = _ADAM if group.get("amsgrad") else _ADAM[:2]
        if not all(isinstance(state.get(name), torch.Tensor) for name in (*names, "step")):
            return None
        found |= {name: local(state[name]) for name in names}
    elif group.get("momentum"):
        if not isinstance(state.get("momentum_buffer"), torch.Tensor):
            return None
        found["momentum_buffer"] = local(state["momentum_buffer"])
    size, device = found["parameter"].numel(), found["parameter"].device
    if not all(t.is_contiguous() and t.numel() == size for t in found.values()):
        return None
    if any(tensor.device != device for tensor in found.values()):
        return None
    return found | ({"step": local(state["step"])} if kind == "adam" else {})


def again(update: Update) -> dict[str, torch.Tensor]:
    """Parameter and state after the step, computed where the tensors of `update` are."""
    with torch.no_grad():
        done = {name: tensor.clone() for name, tensor in update.tensors.items()}
        options = dict(update.options)
        decoupled = options.pop("decoupled")
        if update.kind == "adam":
            beta1, beta2 = options.pop("betas")
            largest = [done["max_exp_avg_sq"]] if "max_exp_avg_sq" in done else []
            adam(
                [done["parameter"]], [done["gradient"]], [done["exp_avg"]], [done["exp_avg_sq"]],
                largest, [done["step"]], beta1=beta1, beta2=beta2,
                decoupled_weight_decay=decoupled, **options,
            )  # fmt: skip
        else:
            sgd([done["parameter"]], [done["gradient"]], [done.get("momentum_buffer")], **options)
    return {name: done[name] for name in done if name not in ("gradient", "step")}


def now(update: Update, optimizer: Any, parameter: Any) -> dict[str, torch.Tensor] | None:
    """What `again` should give, and the gradient, as they are by now; None where they are no
    longer there."""
    group = {"amsgrad": "max_exp_avg_sq" in update.tensors}
    group["momentum"] = "momentum_buffer" in update.tensors
    found = _tensors(update.kind, optimizer.state.get(parameter), parameter, group)
    if found is None or local(parameter).numel() < update.end:
        return None
    found.pop("step", None)
    return {name: each.view(-1)[update.begin : update.end] for name, each in found.items()}


def different(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Which elements have other bits, where the tensors are."""
    return (bits(left) != bits(right)).reshape(len(left), -1).any(1)
