"""What can be computed again: a model in DistributedDataParallel, or a block of FSDP2, cut by
tensor parallelism or not; as a stage of a pipeline or alone."""

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.worker.audits import purity
from harness.worker.audits.names import name_of
from harness.worker.digests.layouts import plain, ranks_of
from harness.worker.digests.pace import scattered

if TYPE_CHECKING:
    from harness.worker.audits.gradients import Guard
    from harness.worker.audits.replay import Replays


class Unit:
    """A module at one step. `members` are the ranks whose parameters of it are the same."""

    def __init__(self, module: Any, members: tuple[int, ...], *, gathered: bool) -> None:
        """`gathered`: its parameters are whole for a moment only, so they are copied."""
        self._module = weakref.ref(module)
        self.members = members
        self.gathered = gathered
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [plain(name) for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.leaves = self.parameters
        """What takes the parameters' place when it is computed again."""
        self._places: list[tuple[Any, str, int]] = []
        if gathered:
            self.leaves = [p.detach().clone().requires_grad_() for p in self.parameters]
            index = {id(parameter): at for at, parameter in enumerate(self.parameters)}
            self._places = [
                (weakref.ref(each), name, index[id(parameter)])
                for each in module.modules()
                for name, parameter in each._parameters.items()
                if id(parameter) in index
            ]

    @property
    def module(self) -> Any:
        """None when it is gone."""
        return self._module()

    def name_of(self, at: int) -> str:
        """Of a parameter within the whole model."""
        return f"{name_of(self.module)}.{self.names[at]}" if self.gathered else self.names[at]

    def why_not(self) -> str:
        """Why it is not computed again."""
        return purity.why_not(self.module, cut=self.gathered)

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Within, the module has the parameters that it had at its own step."""
        before = []
        for reference, name, at in self._places:
            each = reference()
            if each is not None:
                before.append((each, name, each._parameters[name]))
                each._parameters[name] = self.leaves[at]
        try:
            yield
        finally:
            for each, name, parameter in before:
                each._parameters[name] = parameter


def watch_ddp(module: Any, find: "Callable[[], Replays | None]", guard: "Guard") -> None:
    """Hook for torch.nn.parallel.distributed."""
    wrapper = module.DistributedDataParallel
    original = wrapper._run_ddp_forward
    torch = sys.modules["torch"]

    @functools.wraps(original)
    def _run_ddp_forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        replays = None if torch.compiler.is_compiling() else find()
        if replays is None or not replays.due:
            return original(ddp, *args, **kwargs)
        guard(_ddp_begins, replays, ddp, args, kwargs)
        output = original(ddp, *args, **kwargs)
        guard(replays.computed, ddp.module, output)
        return output

    wrapper._run_ddp_forward = _run_ddp_forward


def _ddp_begins(replays: "Replays", ddp: Any, args: Any, kwargs: Any) -> None:
    """Of the micro-batches of a step the one that is reduced; the first one where none says so, as
    in a pipeline, whose schedule has the reduction follow the last one."""
    reduced = bool(ddp.require_backward_grad_sync)
    if reduced or replays.takes_first:
        replays.begin(
            ddp.module,
            lambda: Unit(ddp.module, ranks_of(ddp.process_group), gathered=False),
            args,
            kwargs,
        )
    replays.saw_forward(reduced)


class Blocks:
    """The blocks of this rank's FSDP models, in the order of their first forwards."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def turn(self, state: Any, number: int) -> bool:
        """Whether it is the turn of this block in round `number`, alike on all ranks."""
        at = self._known.setdefault(state, len(self._known))
        return at == scattered(number, len(self._known))


def watch_fsdp(module: Any, find: "Callable[[], Replays | None]", guard: "Guard") -> None:
    """Hook for torch.distributed.fsdp._fully_shard._fsdp_state."""
    state_class = module.FSDPState
    before, after = state_class._pre_forward, state_class._post_forward
    torch, blocks = sys.modules["torch"], Blocks()

    @functools.wraps(before)
    def _pre_forward(state: Any, each: Any, args: Any, kwargs: Any) -> Any:
        replays = None if torch.compiler.is_compiling() else find()
        if replays is not None and replays.computing:
            return args, kwargs  # it has all of its parameters
        if replays is None or not replays.due or _recomputed(state):
            return before(state, each, args, kwargs)
        args, kwargs = before(state, each, args, kwargs)
        guard(_block_begins, replays, blocks, state, each, args, kwargs)
        return args, kwargs

    @functools.wraps(after)
    def _post_forward(state: Any, each: Any, given: Any, output: Any) -> Any:
        replays = None if torch.compiler.is_compiling() else find()
        if replays is not None and replays.computing:
            return output
        if replays is not None and replays.due and not _recomputed(state):
            guard(replays.computed, each, output)
        return after(state, each, given, output)

    state_class._pre_forward, state_class._post_forward = _pre_forward, _post_forward


def _recomputed(state: Any) -> bool:
    """Whether a checkpoint computes it again, in the backward pass."""
    return getattr(state._training_state, "name", "") == "PRE_BACKWARD"


def _block_begins(
    replays: "Replays", blocks: Blocks, state: Any, module: Any, args: Any, kwargs: Any
) -> None:
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    inner = [each for each in module.modules() if each is not module]
    if len(groups) != 1 or groups[0] is None or any(_is_fsdp(each) for each in inner):
        return  # a root, whose parts are blocks themselves, or one without parameters
    if len(groups[0].modules) != 1 or getattr(groups[0].mesh_info, "is_spmd_mesh", False):
        return  # several modules that are gathered as one; a mesh with more than replicas in it
    if not blocks.turn(state, replays.turn):
        return
    mesh = groups[0].mesh_info.mesh
    members = tuple(sorted(int(rank) for rank in mesh.mesh.flatten()))
    replays.begin(module, lambda: Unit(module, members, gathered=True), args, kwargs)


def _is_fsdp(module: Any) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
