"""One micro-batch in many is computed twice: by its rank, and by a neighbour that holds the same
parameters, in turns one on the same node and one on another.

Inputs, random numbers and the gradients of the outputs are taken down while the batch is computed;
with them the neighbour needs to know nothing of the loss. It computes after the reduction and
before the optimizer's step, as long as the parameters are what they were. What has not come from
another node by then is waited for a moment, and then left alone. A rank whose model has no other
replica computes its own batch again, which shows faults of the moment only.
"""

import functools
import hashlib
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from harness.worker.audits import exchange, purity
from harness.worker.audits.fingerprints import Fingerprints, tensors_in
from harness.worker.audits.gradients import Guard, Tell
from harness.worker.audits.neighbours import Pair, pair_of
from harness.worker.digests.layouts import plain, ranks_of
from harness.worker.digests.pace import Pace

_PLAIN = (type(None), bool, int, float, str)
_MOST_FAILED = 3
"""Replays in a row that give other numbers: whatever it is, there is nothing more to learn."""
_MOST_NAMED = 4
_PATIENCE_SECONDS = 0.25
"""For what comes from another node. It counts as cost of the check."""
_MOST_VAIN = 3
"""Waits in a row that nothing came of; after that only what is there is taken."""


class _Batch:
    """What is taken down of this rank's own micro-batch."""

    def __init__(
        self, ddp: Any, number: int, inputs: Any, parameters: list[Any], pair: Pair
    ) -> None:
        self.ddp = weakref.ref(ddp)
        self.number = number
        self.pair = pair
        self.parameters = parameters
        self.leaves, self.form = inputs
        self.writer: exchange.BatchWriter | None = None
        self.handles: list[Any] = []
        self.seen: set[int] = set()
        self.arrived: set[int] = set()
        self.valid = True
        self.operations = 0
        self.conditions = ""

    def drop(self) -> None:
        """No hook of ours stays with the user's tensors."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if self.writer is not None:
            self.writer.close(valid=self.valid)
            self.writer = None


class Replays:
    """Of the model that DistributedDataParallel keeps alike on all ranks."""

    def __init__(
        self,
        tell: Tell,
        guard: Guard,
        operations: Callable[[], int],
        *,
        rank: int,
        local: Sequence[int],
        path: Callable[[int, int], str],
        send: Callable[[int, int], object],
        pace: Pace | None,
    ) -> None:
        """`send` takes the number of a batch and the rank on another node that it is for: there is
        more of it."""
        self._tell = tell
        self._guard = guard
        self._operations = operations
        self._send = send
        self._rank = rank
        self._local = local
        self._path = path
        self._pace = pace
        self._fingerprints = Fingerprints()
        self._batch: _Batch | None = None
        self._steps = 0
        self._cost = 0.0
        self.looks = 0
        self.far = 0
        """Looks at batches of other nodes."""
        self._vain = 0
        self._failed = 0
        self._clean_ns = 0
        self.why_not = "" if pace is not None else "switched off"

    @property
    def due(self) -> bool:
        count = self._steps + 1
        return not self.why_not and self._pace is not None and count % self._pace.stride == 0

    # --- the owner -----------------------------------------------------------------------------

    def begin(self, ddp: Any, args: Any, kwargs: Any) -> None:
        """A wrapped model is about to be computed."""
        torch = sys.modules["torch"]
        if (
            self._batch is not None
            or not ddp.require_backward_grad_sync
            or not torch.is_grad_enabled()
            or not ddp.module.training
        ):
            return
        began = time.thread_time()
        self.why_not = purity.why_not(ddp.module)
        if self.why_not:
            return
        leaves, form = torch.utils._pytree.tree_flatten((args, kwargs))
        if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            self.why_not = "its inputs are more than tensors"
            return
        parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        number = self._steps + 1
        pair = pair_of(ranks_of(ddp.process_group), self._rank, self._local, self._round(number))
        batch = self._batch = _Batch(ddp, number, (leaves, form), parameters, pair)
        path = self._path(self._rank, number)
        batch.writer = exchange.BatchWriter(path, number, len(parameters))
        batch.conditions = f"{purity.conditions(ddp.module)} {self._held(ddp.module)}"
        batch.operations = self._operations()
        batch.writer.piece(
            {
                "leaves": [_kept(leaf) for leaf in leaves],
                "form": str(form),
                "random": {k: v.cpu() for k, v in purity.random_state().items()},
                "autocast": purity.autocast_state(),
                "conditions": batch.conditions,
            }
        )
        self._on_its_way(batch)
        self._cost = time.thread_time() - began

    def _round(self, number: int) -> int:
        assert self._pace is not None
        return number // self._pace.every

    def _on_its_way(self, batch: _Batch) -> None:
        if batch.pair.reader not in self._local:
            self._send(batch.number, batch.pair.reader)

    def _held(self, module: Any) -> str:
        """Of all parameters. Replicas that have gone apart compute other gradients, and whoever
        computes them is not to blame."""
        held = [int(self._fingerprints.of(p)) for p in module.parameters() if p.numel()]
        return hashlib.blake2b(repr(held).encode(), digest_size=8).hexdigest()

    def computed(self, output: Any) -> None:
        """The outputs are there; their gradients come with the backward pass."""
        batch = self._batch
        if batch is None or batch.handles or batch.writer is None:
            return
        began = time.thread_time()
        if self._operations() != batch.operations:
            self.why_not = "its forward talks to other ranks"
            self._drop(valid=False)
            return
        outputs = tensors_in(output)
        if purity.nests(outputs):
            self.why_not = "a backward pass of its own is within its backward pass"
            self._drop(valid=False)
            return
        for at, tensor in enumerate(outputs):
            if tensor.requires_grad:
                batch.handles.append(tensor.register_hook(self._hook(self._output, batch, at)))
        for at, parameter in enumerate(batch.parameters):
            batch.handles.append(parameter.register_hook(self._hook(self._gradient, batch, at)))
        self._cost += time.thread_time() - began

    def _hook(
        self, look: Callable[[_Batch, int, Any], None], batch: _Batch, at: int
    ) -> Callable[[Any], None]:
        def arrived(gradient: Any) -> None:
            began = time.thread_time()
            self._guard(look, batch, at, gradient)
            self._cost += time.thread_time() - began

        return arrived

    def _output(self, batch: _Batch, at: int, gradient: Any) -> None:
        if at in batch.arrived or batch.writer is None:
            batch.valid = False  # a second backward pass: these are parts of gradients
            return
        batch.arrived.add(at)
        try:
            batch.writer.piece({"gradients": {at: gradient.detach().cpu()}})
            self._on_its_way(batch)
        except exchange.TooLarge:
            batch.valid = False
            self.why_not = "its outputs are too large to be copied"

    def _gradient(self, batch: _Batch, at: int, gradient: Any) -> None:
        if at in batch.seen or batch.writer is None:
            batch.valid = False
            return
        batch.seen.add(at)
        batch.writer.digest(at, int(self._fingerprints.of(gradient)) & 0xFFFFFFFFFFFFFFFF)
        if len(batch.seen) == len(batch.parameters) and batch.valid:
            batch.writer.complete()
            self._on_its_way(batch)

    # --- the neighbour -------------------------------------------------------------------------

    def stepping(self) -> None:
        """All gradients are reduced, and the parameters are still those that they are of."""
        batch, began = self._batch, time.thread_time()
        if batch is None:
            return
        whole = batch.valid and bool(batch.arrived) and bool(batch.seen)
        if whole and batch.writer is not None and len(batch.seen) < len(batch.parameters):
            batch.writer.complete()  # the others take no part in this batch
            self._on_its_way(batch)
        self._drop(valid=whole)
        ddp = batch.ddp()
        if not whole or ddp is None or self.why_not:
            return
        found, waited = self._found(batch)
        if found is not None:
            self._compare(ddp, batch, *found)
        assert self._pace is not None
        cost = self._cost + time.thread_time() - began + waited
        self._pace.looked(batch.number, cost if self.looks > 1 else 0.0)

    def _found(self, batch: _Batch) -> tuple[exchange.Content | None, float]:
        """What the owner has left for this rank, and the seconds that this rank slept for it."""
        owner = batch.pair.owner
        what = (self._path(owner, batch.number), batch.number, len(batch.parameters))
        if owner in self._local:
            return exchange.read(*what), 0.0
        began = time.monotonic()
        patience = _PATIENCE_SECONDS if self._vain < _MOST_VAIN else 0.0
        found = exchange.arrived(*what, patience)
        self._vain = 0 if found is not None else self._vain + 1
        return found, time.monotonic() - began

    def stepped(self) -> None:
        self._steps += 1

    def _drop(self, *, valid: bool) -> None:
        if self._batch is not None:
            self._batch.valid = self._batch.valid and valid
            self._batch.drop()
        self._batch = None

    def _compare(
        self,
        ddp: Any,
        batch: _Batch,
        content: dict[str, Any],
        theirs: list[int | None],
    ) -> None:
        alike = content["conditions"] == batch.conditions and content["form"] == str(batch.form)
        if not alike or not content["gradients"] or not _room(ddp.module):
            return
        compute = functools.partial(self._compute, ddp.module, batch, content)
        ours = compute()
        if self.why_not:
            return
        self.looks += 1
        self.far += batch.pair.owner not in self._local
        if ours == theirs:
            self._failed, self._clean_ns = 0, time.time_ns()
            return
        second = compute()
        again = "first" if second == theirs else "second" if second == ours else "neither"
        self._failed += 1
        if self._failed >= _MOST_FAILED:
            self.why_not = "its numbers are others each time"
        names = [plain(name) for name, p in ddp.module.named_parameters() if p.requires_grad]
        differ = [name for name, a, b in zip(names, ours, theirs, strict=True) if a != b]
        self._tell(
            check="replay", subject=differ[0], peer=batch.pair.owner, ring=batch.pair.size,
            again=again, count=batch.number, looks=self.looks, failed=self._failed,
            tensors=tuple(differ[:_MOST_NAMED]), differ=len(differ), total=len(names),
            clean_ns=self._clean_ns,
        )  # fmt: skip

    def _compute(self, module: Any, batch: _Batch, content: dict[str, Any]) -> list[int | None]:
        """Digests of the gradients that `module` has for the batch in `content`."""
        torch = sys.modules["torch"]
        leaves = [
            _placed(theirs, own)
            for theirs, own in zip(content["leaves"], batch.leaves, strict=True)
        ]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, batch.form)
        with purity.nothing_left(module), torch.enable_grad():
            purity.set_random_state(content["random"])
            with purity.autocast(content["autocast"]):
                output = module(*args, **kwargs)
            tensors = tensors_in(output)
            used = [tensors[at] for at in content["gradients"]]
            given = [
                gradient.to(tensor.device)
                for gradient, tensor in zip(content["gradients"].values(), used, strict=True)
            ]
            with purity.gradients_aside(batch.parameters):
                found = torch.autograd.grad(used, batch.parameters, given, allow_unused=True)
                if any(parameter.grad is not None for parameter in batch.parameters):
                    self.why_not = "a backward pass of its own is within its backward pass"
            return [
                None if each is None else int(self._fingerprints.of(each)) & 0xFFFFFFFFFFFFFFFF
                for each in found
            ]


def _kept(leaf: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().to("cpu", copy=True)


def _placed(theirs: Any, own: Any) -> Any:
    """A value of another rank's, where this rank has its own."""
    torch = sys.modules["torch"]
    if not isinstance(theirs, torch.Tensor) or not isinstance(own, torch.Tensor):
        return theirs
    placed = theirs.to(own.device, copy=True)
    return placed.requires_grad_(own.requires_grad)


def _room(module: Any) -> bool:
    """Whether a GPU has memory for another backward pass beside all that is there."""
    torch = sys.modules["torch"]
    if not any(parameter.is_cuda for parameter in module.parameters()):
        return True
    free, _ = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    gradients = sum(p.numel() * p.element_size() for p in module.parameters())
    needed = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() + gradients
    return bool(free > 1.2 * needed)


def watch_ddp(module: Any, find: Callable[[], Replays | None], guard: Guard) -> None:
    """Hook for torch.nn.parallel.distributed."""
    wrapper = module.DistributedDataParallel
    original = wrapper._run_ddp_forward
    torch = sys.modules["torch"]

    @functools.wraps(original)
    def _run_ddp_forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        replays = None if torch.compiler.is_compiling() else find()
        if replays is None or not replays.due:
            return original(ddp, *args, **kwargs)
        guard(replays.begin, ddp, args, kwargs)
        output = original(ddp, *args, **kwargs)
        guard(replays.computed, output)
        return output

    wrapper._run_ddp_forward = _run_ddp_forward
