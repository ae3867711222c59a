"""Optimizers: their state by the name of the parameter it belongs to, so that another layout, where
parameters have other numbers or live on other ranks, finds it again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from harness.checkpoints import Tensor
from harness.errors import UsageError

Names = Mapping[torch.Tensor, str]


def as_optimizers(thing: object) -> list[Optimizer] | None:
    """The optimizers of a thing that is one, or a list of them."""
    if isinstance(thing, Optimizer):
        return [thing]
    if isinstance(thing, Sequence) and thing and all(isinstance(o, Optimizer) for o in thing):
        return list(thing)
    return None


def numbered(thing: str, optimizer: Optimizer, names: Names) -> Iterator[tuple[int, str, Any]]:
    """Number (as in its state_dict), name and parameter of all parameters of an optimizer.

    Raises UsageError when one belongs to no model that was handed over too.
    """
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise UsageError(
                    f"{thing}: a parameter of shape {tuple(parameter.shape)} belongs to no module "
                    "that was given",
                    help="give the model in the same call",
                )
            yield number, names[parameter], parameter
            number += 1


def state(
    thing: str, optimizers: Sequence[Optimizer], names: Names
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors under state.PARAMETER.KIND, and what this rank keeps beside them.

    The latter: `groups`, the settings of each group with the names of its parameters, and `state`,
    what is no tensor, or a tensor that belongs to this rank's shard alone.
    """
    tensors: dict[str, torch.Tensor] = {}
    groups: list[dict[str, Any]] = []
    lone: dict[str, dict[str, Any]] = {}
    for optimizer in optimizers:
        content = optimizer.state_dict()
        name_of = {number: name for number, name, _ in numbered(thing, optimizer, names)}
        for number, name, parameter in numbered(thing, optimizer, names):
            for kind, value in content["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and not _shard_of_its_own(value, parameter):
                    tensors[f"state.{name}.{kind}"] = value
                else:
                    lone.setdefault(name, {})[kind] = value
        for group in content["param_groups"]:
            settings = {key: value for key, value in group.items() if key != "params"}
            groups.append({"settings": settings, "names": [name_of[n] for n in group["params"]]})
    return tensors, {"groups": groups, "state": lone}


def _shard_of_its_own(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a plain tensor describes one rank's shard: other ranks have others by that name."""
    return (
        isinstance(parameter, DTensor)
        and not isinstance(value, DTensor)
        and value.numel() > 1
        and any(not placement.is_replicate() for placement in parameter.placements)
    )


def empty_state(
    thing: str, optimizers: Sequence[Optimizer], names: Names, saved: Mapping[str, Tensor]
) -> dict[str, torch.Tensor]:
    """Tensors to load into, under the names of `state`, for what the checkpoint holds.

    State of the shape of its parameter is laid out like the parameter, anything else is whole on
    every rank. Raises UsageError where there is no telling how it was laid out.
    """
    kinds: dict[str, list[str]] = {}
    prefix = f"{thing}.state."
    for key in saved:
        if key.startswith(prefix):
            owner, _, kind = key.removeprefix(prefix).rpartition(".")
            kinds.setdefault(owner, []).append(kind)
    found: dict[str, torch.Tensor] = {}
    for optimizer in optimizers:
        for _, name, parameter in numbered(thing, optimizer, names):
            for kind in kinds.get(name, []):
                entry = saved[f"{prefix}{name}.{kind}"]
                dtype = getattr(torch, entry.dtype)
                if entry.shape == tuple(parameter.shape):
                    value = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
                else:
                    value = torch.zeros(entry.shape, dtype=dtype)
                found[f"state.{name}.{kind}"] = value
    return found


def install(
    thing: str,
    optimizers: Sequence[Optimizer],
    names: Names,
    tensors: Mapping[str, torch.Tensor],
    rest: Sequence[Mapping[str, Any]],
) -> None:
    """Give the optimizers their state. `rest` is what ranks kept, this rank's own first.

    Raises UsageError when the checkpoint has no settings for a group.
    """
    settings: dict[str, dict[str, Any]] = {}
    lone: dict[str, dict[str, Any]] = {}
    for kept in reversed(rest):
        for group in kept["groups"]:
            settings |= {name: group["settings"] for name in group["names"]}
        lone |= kept["state"]
    of_parameter: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, kind = key.removeprefix("state.").rpartition(".")
        of_parameter.setdefault(name, {})[kind] = tensor
    for optimizer in optimizers:
        _install_one(thing, optimizer, names, of_parameter, settings, lone)


def _install_one(
    thing: str,
    optimizer: Optimizer,
    names: Names,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    settings: Mapping[str, dict[str, Any]],
    lone: Mapping[str, dict[str, Any]],
) -> None:
    content: dict[str, Any] = {"state": {}, "param_groups": []}
    parameters = list(numbered(thing, optimizer, names))
    for number, name, _ in parameters:
        kinds = {**tensors.get(name, {}), **lone.get(name, {})}
        if kinds:
            content["state"][number] = kinds
    number = 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        known = [settings[n] for _, n, _ in parameters[number : number + count] if n in settings]
        if not known and count:
            raise UsageError(f"{thing}: the checkpoint has no settings for {parameters[number][1]}")
        content["param_groups"].append(
            {**(known[0] if known else {}), "params": list(range(number, number + count))}
        )
        number += count
    optimizer.load_state_dict(content)
    for number, _, parameter in parameters:
        # It casts state to the parameter's type, which would round state kept in higher precision.
        for kind, value in content["state"].get(number, {}).items():
            now = optimizer.state[parameter].get(kind)
            both = isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor)
            if both and now.dtype != value.dtype:
                optimizer.state[parameter][kind] = value.to(parameter.device)
