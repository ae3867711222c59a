"""What a script hands over by name (model, optimizer, scheduler, loader, numbers), sorted into what
all ranks hold together, tensors under stable names, and what each rank keeps for itself."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from harness.checkpoints import Tensor
from harness.errors import UsageError
from harness.sdk.checkpoint import modules, names, optimizers, randomness

RANDOM = "random_numbers"
VALUES = "values"
_OWN = (RANDOM, VALUES, "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one rank has to save. Tensors are the live ones, under THING.NAME.

    `buffers` are names of tensors of which rank 0's counts where ranks differ. `rest` is already
    pickled, a snapshot by thing. `values` are the plain values that JSON can express.
    """

    tensors: dict[str, torch.Tensor]
    buffers: set[str]
    rest: dict[str, bytes]
    values: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Things:
    """The things of one call, by what they are."""

    modules: dict[str, list[nn.Module]] = field(default_factory=dict)
    optimizers: dict[str, list[Optimizer]] = field(default_factory=dict)
    stateful: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def owners(self) -> dict[torch.Tensor, str]:
        """The name of every parameter of every module, THING.NAME."""
        found: dict[torch.Tensor, str] = {}
        for thing, parts in self.modules.items():
            for part in parts:
                for name, parameter in names.parameters(part):
                    found.setdefault(parameter, f"{thing}.{name}")
        return found


def sort(things: Mapping[str, Any]) -> Things:
    """Raises UsageError for a name that is ours."""
    found = Things()
    for name, thing in things.items():
        if name in _OWN or "." in name:
            raise UsageError(f"Checkpointer: {name!r} is not a name for a thing to save")
        parts, several = names.as_modules(thing), optimizers.as_optimizers(thing)
        if parts is not None:
            found.modules[name] = parts
        elif several is not None:
            found.optimizers[name] = several
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            found.stateful[name] = thing
        else:
            found.values[name] = thing
    return found


def collect(things: Things) -> Contents:
    """The state of everything now. Tensors are not copied yet, the rest is.

    Raises UsageError for what cannot be saved by name, and whatever a state_dict() raises.
    """
    tensors: dict[str, torch.Tensor] = {}
    buffers: set[str] = set()
    rest: dict[str, bytes] = {}
    for thing, parts in things.modules.items():
        found, other = modules.state(thing, parts)
        tensors |= {f"{thing}.{name}": value for name, value in found.items()}
        buffers |= {f"{thing}.{name}" for name in modules.buffer_names(parts)}
        if other:
            rest[thing] = pickled(other)
    owners = things.owners
    for thing, several in things.optimizers.items():
        found, kept = optimizers.state(thing, several, owners)
        tensors |= {f"{thing}.{name}": value for name, value in found.items()}
        rest[thing] = pickled(kept)
    for thing, stateful in things.stateful.items():
        rest[thing] = pickled(stateful.state_dict())
    if things.values:
        rest[VALUES] = pickled(things.values)
    rest[RANDOM] = pickled(randomness.capture())
    return Contents(tensors=tensors, buffers=buffers, rest=rest, values=_expressible(things.values))


def pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _expressible(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        try:
            found[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return found


def targets(things: Things, saved: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    """Tensors to load into, by THING.NAME: the models' live ones, fresh ones for optimizers."""
    found: dict[str, torch.Tensor] = {}
    for thing, parts in things.modules.items():
        tensors, _ = modules.state(thing, parts)
        found |= {f"{thing}.{name}": value for name, value in tensors.items()}
    owners = things.owners
    for thing, several in things.optimizers.items():
        fresh = optimizers.empty_state(thing, several, owners, saved)
        found |= {f"{thing}.{name}": value for name, value in fresh.items()}
    return found


def install(
    things: Things, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Give everything its loaded state; returns the plain values.

    `rest` holds, by thing, what ranks kept for themselves, this rank's own first; a thing that is
    not in it stays as it is. Random numbers come last, so that nothing draws from them after.
    """

    def of(thing: str) -> dict[str, torch.Tensor]:
        prefix = f"{thing}."
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    for thing, parts in things.modules.items():
        other: dict[str, Any] = {}
        for kept in reversed(rest.get(thing, [])):
            other |= kept
        modules.install(parts, of(thing), other)
    owners = things.owners
    for thing, several in things.optimizers.items():
        optimizers.install(thing, several, owners, of(thing), rest.get(thing, []))
    for thing, stateful in things.stateful.items():
        if thing in rest:
            stateful.load_state_dict(rest[thing][0])
    values = {**things.values, **(rest[VALUES][0] if VALUES in rest else {})}
    if RANDOM in rest:
        randomness.restore(rest[RANDOM][0])
    return values
