"""Which ranks hold the same values of a tensor, as DDP, FSDP, ZeRO and DTensor declare it."""

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Group:
    """`members`, global ranks, are to hold equal values; of how `sharded` it is, different ones.
    Of how `left`: the program sums the gradients of all others of the optimizer over them. Fewer
    than two: it is known that nobody else has to hold the same.

    `axis` is the name of the mesh's axis, where there is a mesh.
    """

    how: str
    axis: str
    members: tuple[int, ...]


class Models:
    """The modules around some parameters, as far as they live: outermost ones and wrappers."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        base = sys.modules["torch.nn.modules.module"].Module
        wanted = {id(parameter) for parameter in parameters}
        modules = [found for found in gc.get_objects() if issubclass(type(found), base)]
        inner = {id(child) for module in modules for child in _children(module)}
        self._outermost: list[weakref.ref[Any]] = []
        self._ddp: list[weakref.ref[Any]] = []
        self._fsdp: list[weakref.ref[Any]] = []
        for module in modules:
            kinds = {kind.__name__ for kind in type(module).__mro__}
            if "DistributedDataParallel" in kinds:
                self._ddp.append(weakref.ref(module))
            elif "FullyShardedDataParallel" in kinds:
                self._fsdp.append(weakref.ref(module))
            if id(module) not in inner and any(id(p) in wanted for p in _parameters(module)):
                self._outermost.append(weakref.ref(module))

    def outermost(self) -> list[Any]:
        return _alive(self._outermost)

    def groups(self) -> dict[int, Group]:
        """Of each parameter that a wrapper keeps equal, by its id."""
        found: dict[int, Group] = {}
        for wrapped in _alive(self._fsdp):
            with contextlib.suppress(Exception):
                members = _fsdp_members(wrapped)
                if len(members) > 1:
                    group = Group("fsdp", "", members)
                    for parameter in wrapped.parameters(recurse=True):
                        found.setdefault(id(parameter), group)
        for wrapped in _alive(self._ddp):
            with contextlib.suppress(Exception):
                if len(ranks_of(wrapped.process_group)) < 2:
                    continue
                group = Group("ddp", "", _averaging(wrapped))
                ignored = set(wrapped.parameters_to_ignore)
                for name, parameter in wrapped.module.named_parameters(remove_duplicate=False):
                    if name not in ignored:
                        found[id(parameter)] = group
        return found

    def buffers(self) -> dict[int, tuple[Group, bool]]:
        """Of each buffer of a DDP model: its group, and whether DDP itself keeps them equal."""
        found: dict[int, tuple[Group, bool]] = {}
        for wrapped in _alive(self._ddp):
            with contextlib.suppress(Exception):
                group = Group("ddp", "", ranks_of(wrapped.process_group))
                ignored = set(wrapped.parameters_to_ignore)
                for name, buffer in wrapped.module.named_buffers(remove_duplicate=False):
                    kept = bool(wrapped.broadcast_buffers)
                    if len(group.members) > 1:
                        # Left out by the user: neither kept equal nor meant to be.
                        found[id(buffer)] = (group, kept or name in ignored)
        return found


def _alive(known: Sequence["weakref.ref[Any]"]) -> list[Any]:
    return [found for each in known if (found := each()) is not None]


def ranks_of(pg: Any) -> tuple[int, ...]:
    """Global ranks of a process group."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return tuple(c10d.get_process_group_ranks(pg))


def _averaging(wrapped: Any) -> tuple[int, ...]:
    """Global ranks over which a DDP model's gradients are averaged at every step of the training.
    Once it has warmed up, post-local SGD does so within a subgroup only (Lin et al., "Don't use
    large mini-batches, use local SGD", 2020)."""
    members = ranks_of(wrapped.process_group)
    for hook, state in getattr(wrapped, "_comm_hooks", ()):
        if type(state).__name__ == "PostLocalSGDState":
            within = state.subgroup if state.post_local_gradient_allreduce else None
            members = () if within is None else ranks_of(within)
        elif getattr(hook, "__name__", "") == "noop_hook":
            members = ()
    return members


def _fsdp_members(wrapped: Any) -> tuple[int, ...]:
    """Ranks with equal shards of an FSDP1 model: none where everything is sharded."""
    strategy = getattr(wrapped.sharding_strategy, "name", "")
    if strategy == "NO_SHARD":
        return ranks_of(wrapped.process_group)
    if "HYBRID" in strategy:
        return ranks_of(wrapped._inter_node_pg)
    return ()


def declared(tensor: Any, wrapped: Group | None) -> tuple[Group, ...]:
    """What a tensor's placements, and the wrapper around its model, say of it."""
    found = [] if wrapped is None else [wrapped]
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return tuple(found)
    place = mesh.get_coordinate()
    if place is None:
        return tuple(found)
    names = mesh.mesh_dim_names or [f"axis{at}" for at in range(mesh.mesh.ndim)]
    for at, placement in enumerate(placements):
        if mesh.mesh.shape[at] < 2:
            continue
        index: list[Any] = list(place)
        index[at] = slice(None)
        members = tuple(int(rank) for rank in mesh.mesh[tuple(index)].tolist())
        if placement.is_replicate():
            found.append(Group("dtensor", names[at], members))
        elif placement.is_shard():
            found.append(Group("sharded", names[at], members))
    return tuple(found)


def of_optimizer(optimizer: Any) -> Group | None:
    """ZeRO-1 keeps all parameters equal and cuts only the optimizer's state."""
    if type(optimizer).__name__ != "ZeroRedundancyOptimizer":
        return None
    members = ranks_of(optimizer.process_group)
    return Group("zero", "", members) if len(members) > 1 else None


def _children(module: Any) -> Iterable[Any]:
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _parameters(module: Any) -> Iterable[Any]:
    with contextlib.suppress(Exception):
        return list(module.parameters())
    return []


def plain(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    parts = name.split(".")
    inserted = ("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
    return ".".join(part for part in parts if part not in inserted) or name
