"""Names of parameters that no wrapper and no layout changes."""

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Children under which torch.compile, activation checkpointing and FSDP put the real module."""


def parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter once, under the name it has without wrappers (DDP, torch.compile, ...)."""
    seen: set[int] = set()
    for prefix, part in _parts(module, ""):
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}{name}", parameter


def buffers(module: nn.Module) -> Iterator[str]:
    """Names of all buffers, without wrappers."""
    for prefix, part in _parts(module, ""):
        for name, _ in part.named_buffers(recurse=False):
            yield f"{prefix}{name}"


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    yield prefix, module
    for name, child in module.named_children():
        bare = name in _WRAPPERS or (
            isinstance(module, DistributedDataParallel) and name == "module"
        )
        yield from _parts(child, prefix if bare else f"{prefix}{name}.")


def as_modules(thing: object) -> list[nn.Module] | None:
    """The modules of a thing that is one, or a list of them (the parts of a pipeline stage)."""
    if isinstance(thing, nn.Module):
        return [thing]
    if isinstance(thing, Sequence) and thing and all(isinstance(m, nn.Module) for m in thing):
        return list(thing)
    return None
