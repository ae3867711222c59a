"""What a rank tells without a changed line: steps, meshes and groups.

Each hook is put into its torch module when that is imported; in a process forked from the zygote
they are there already and get their hooks at once.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from harness.topology import runs_of
from harness.worker import files, marks, recorder, rendezvous, teardown
from harness.worker.audits import auditor, losses, places
from harness.worker.digests import witness
from harness.worker.guest import Guest, current
from harness.worker.setup import SETTLED_STEPS


def install(guest: Guest) -> None:
    """Hook what is imported, and what will be."""
    hooks: dict[str, Callable[[Any], None]] = {
        "torch.optim.optimizer": _optimizers_arrived,
        "torch.autograd": lambda module: marks.watch_backward(module, _marker),
        "torch.nn.parallel.distributed": _ddp_arrived,
        "torch.distributed.fsdp.fully_sharded_data_parallel": lambda module: marks.watch_forward(
            module, "FullyShardedDataParallel", _marker
        ),
        **places.hooks(_auditor),
        "torch.distributed.distributed_c10d": watch_groups,
        "torch.distributed.device_mesh": watch_meshes,
        "torch.distributed.rendezvous": rendezvous.separate_groups,
        "torch.serialization": files.watch_serialization,
        "torch.distributed": lambda module: _distributed_arrived(guest, module),
    }
    for name in list(hooks):
        if name in sys.modules:
            _quietly(hooks.pop(name), sys.modules[name])
    files.watch_opened()
    if hooks:
        sys.meta_path.insert(0, _Arrivals(hooks))


def _quietly(hook: Callable[[Any], None], module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:  # a torch that looks different must not stop the user's program
        guest = current()
        if guest is not None:
            guest.link.say("HookFailed", module=module.__name__, why=repr(error))


class _Arrivals(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find, and runs a hook after the module's code."""

    def __init__(self, hooks: dict[str, Callable[[Any], None]]) -> None:
        self._hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        hook = self._hooks.pop(fullname)
        if not self._hooks and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _quietly(hook, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _optimizers_arrived(module: Any) -> None:
    count_steps(module)
    marks.watch_steps(module, _marker)
    witness.watch_steps(module, _witness)
    auditor.watch_steps(module, _auditor)
    losses.watch_rates(module, _losses)


def _ddp_arrived(module: Any) -> None:
    marks.watch_forward(module, "DistributedDataParallel", _marker)
    places.watch_ddp(module, _auditor)


def _auditor() -> auditor.Auditor | None:
    guest = current()
    return None if guest is None else guest.auditor


def _losses() -> losses.Losses | None:
    guest = current()
    return None if guest is None else guest.losses


def _witness() -> witness.Witness | None:
    guest = current()
    return None if guest is None else guest.witness


def _marker() -> marks.Marker | None:
    guest = current()
    return None if guest is None else guest.marker


def count_steps(module: Any) -> None:
    """Count optimizer steps; with several optimizers, the one that has made most."""
    counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    most = 0

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal most
        guest = current()
        if guest is None:
            return
        try:
            counts[optimizer] = count = counts.get(optimizer, 0) + 1
        except TypeError:
            return  # neither hashable nor weakly referable
        if count == 1:
            guest.setup.saw(optimizer)
        if count > most:
            most = count
            guest.counted_steps(count)
            if count == SETTLED_STEPS:
                guest.setup.tell()

    module.register_optimizer_step_post_hook(stepped)


def watch_groups(module: Any) -> None:
    """Log each creation of a group, tell it by its lowest rank, and drain before groups are
    destroyed."""
    original: Callable[..., Any] = module._new_process_group_helper
    signature = inspect.signature(original)

    @functools.wraps(original)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        guest = current()
        if guest is None:
            return original(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
            ranks = list(given["global_ranks_in_group"] or range(given["group_size"]))
            name, desc = str(given["group_name"]), str(given.get("group_desc") or "undefined")
            place = given.get("group_rank")
            member = place is not None
            place = place if isinstance(place, int) else -1
        except (TypeError, KeyError):  # another torch: it does its work unseen
            return original(*args, **kwargs)
        with _creating(guest, name, desc, ranks, member, place) as number:
            made = original(*args, **kwargs)
        with contextlib.suppress(Exception):  # whatever it was, the user's group is made
            _tell_group(made[0], ranks)
            if member and guest.recorder is not None:
                guest.recorder.made(made[0], number, ranks)
        return made

    module._new_process_group_helper = _new_process_group_helper
    _watch_init(module)
    teardown.wrap_destroy(module)
    guest = current()
    if guest is not None and guest.recorder is not None:
        guest.recorder.watch(sys.modules["torch._C._distributed_c10d"])
        if guest.sites is not None:
            guest.recorder.watch_calls(sys.modules["torch._C._distributed_c10d"], guest.sites)


def _watch_init(module: Any) -> None:
    """Note when the rank begins to wait for all others in init_process_group."""
    original: Callable[..., Any] = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        guest = current()
        if guest is None:
            return original(*args, **kwargs)
        everybody = range(guest.assignment.world_size)
        with _creating(guest, "", "init_process_group", everybody, True):
            return original(*args, **kwargs)

    module.init_process_group = init_process_group


def _creating(
    guest: Guest, name: str, desc: str, ranks: Sequence[int], member: bool, place: int = -1
) -> contextlib.AbstractContextManager[int]:
    if guest.recorder is None:
        return contextlib.nullcontext(0)
    return guest.recorder.creating(name, desc, ranks, member, place)


def _tell_group(pg: Any, ranks: list[int]) -> None:
    guest = current()
    if guest is None or guest.assignment.rank != min(ranks) or not hasattr(pg, "group_name"):
        return
    # A list of ten thousand ranks is no message any more.
    guest.link.say(
        "GroupCreated", pg=str(pg.group_name), pg_desc=str(pg.group_desc), runs=runs_of(ranks)
    )


def watch_meshes(module: Any) -> None:
    """Tell a DeviceMesh that spans the world; of several, a later one with no fewer axes wins."""
    mesh_class = module.DeviceMesh
    original: Callable[..., None] = mesh_class.__init__
    most_axes = 0

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal most_axes
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # whatever it was, the user's mesh is made
            most_axes = _tell_mesh(self, most_axes)

    mesh_class.__init__ = __init__


def _tell_mesh(mesh: Any, most_axes: int) -> int:
    guest = current()
    if guest is None:
        return most_axes
    sizes = [int(size) for size in mesh.mesh.shape]
    total = 1
    for size in sizes:
        total *= size
    if total != guest.assignment.world_size or len(sizes) < most_axes:
        return most_axes
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        return most_axes
    names = mesh.mesh_dim_names or [f"axis{axis}" for axis in range(len(sizes))]
    guest.link.say(
        "MeshDeclared", names=list(names), sizes=sizes, coordinates=[int(c) for c in coordinates]
    )
    return len(sizes)


def _distributed_arrived(guest: Guest, module: Any) -> None:
    core = sys.modules.get("torch.distributed.distributed_c10d")
    if core is not None:  # the package has copied the name before it was wrapped, or after
        module.destroy_process_group = core.destroy_process_group
        module.init_process_group = core.init_process_group
    recorder.serve(guest.assignment.server)
