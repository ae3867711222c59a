"""Models: their parameters and buffers under stable names, and what else they keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel

from harness.errors import UsageError
from harness.sdk.checkpoint import names


def state(
    thing: str, modules: Sequence[nn.Module]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by name (the live ones, not copies), and other state by name.

    Raises UsageError for what cannot be saved under stable names.
    """
    tensors: dict[str, torch.Tensor] = {}
    other: dict[str, Any] = {}
    for module in modules:
        if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
            raise UsageError(
                f"{thing}: FullyShardedDataParallel keeps no tensors by name",
                help="use torch.distributed.fsdp.fully_shard",
            )
        for name, value in get_model_state_dict(module).items():
            if name in tensors or name in other:
                raise UsageError(f"{thing}: two of its modules hold {name}")
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            else:
                other[name] = value
    return tensors, other


def buffer_names(modules: Sequence[nn.Module]) -> set[str]:
    return {name for module in modules for name in names.buffers(module)}


def install(
    modules: Sequence[nn.Module], tensors: Mapping[str, torch.Tensor], other: Mapping[str, Any]
) -> None:
    """Hand the loaded state to the modules' own load_state_dict, hooks and all."""
    for module in modules:
        wanted = get_model_state_dict(module).keys()
        mine = {name: tensors[name] if name in tensors else other[name] for name in wanted}
        set_model_state_dict(module, mine, options=StateDictOptions(strict=True))
