"""Bits of tensors, flipped in a rank."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Parameter

if TYPE_CHECKING:
    import torch

BIT = Parameter("bit", 20, "which bit of the element, 0 the lowest")
WHICH = Parameter("tensor", -1, "number of the parameter; -1: the seed draws one")


def tensors(
    inside: Inside, pick: Callable[[Any, Mapping[str, Any]], list[Any]]
) -> "list[torch.Tensor]":
    """What `pick` gives of the optimizer's parameters and their state, as the rank holds it:
    dense, floating point, more than one element."""
    import torch

    optimizer, found = inside.optimizer, []
    for parameter in [each for group in optimizer.param_groups for each in group["params"]]:
        for tensor in pick(parameter, optimizer.state.get(parameter, {})):
            local = getattr(tensor, "_local_tensor", tensor)
            if isinstance(local, torch.Tensor) and local.is_floating_point() and local.numel() > 1:
                found.append(local.detach())
    number = int(inside.values["tensor"])
    if 0 <= number < len(found):
        return [found[number]]
    inside.random.shuffle(found)
    return found


def flip(inside: Inside, found: "list[torch.Tensor]") -> None:
    """The kind's bit of one element of the first tensor; the seed draws the element."""
    import torch

    for tensor in found[:1]:
        words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        flat = tensor.contiguous().view(-1).view(words) if tensor.is_contiguous() else None
        if flat is None:
            flat = tensor.as_strided((tensor.numel(),), (1,)).view(words)
        top = 8 * tensor.element_size() - 1
        bit = int(inside.values["bit"]) % (top + 1)
        # The top bit is a negative number of the signed type.
        mask = -(1 << top) if bit == top else 1 << bit
        with torch.no_grad():
            flat[inside.random.randrange(flat.numel())] ^= mask
