"""One micro-batch in many is computed twice: by its rank, and by a neighbour that holds the same
parameters, in turns one on the same node and one on another.

Inputs, random numbers and the gradients of the outputs are taken down while the batch is computed;
with them the neighbour needs to know nothing of the loss. It computes after the reduction and
before the optimizer's step, as long as the parameters are what they were. What has not come from
another node by then is waited for a moment, and then left alone. A rank whose model has no other
replica computes its own batch again, which shows faults of the moment only.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.worker.audits import exchange, passing, purity
from harness.worker.audits.fingerprints import Fingerprints, tensors_in
from harness.worker.audits.gradients import Guard, Tell
from harness.worker.audits.neighbours import Pair, pair_of
from harness.worker.audits.units import Unit
from harness.worker.digests.books import local
from harness.worker.digests.pace import Pace

_PLAIN = (type(None), bool, int, float, str)
_MOST_FAILED = 3
"""Replays in a row that give other numbers: whatever it is, there is nothing more to learn."""
_MOST_NAMED = 4
_PATIENCE_SECONDS, _LONG_PATIENCE_SECONDS = 0.25, 10.0
"""For what comes from another node; the latter where checks may cost whatever they do. It counts as
cost of the check."""
_MOST_VAIN = 3
"""Waits in a row that nothing came of; after that only what is there is taken, but in every 16th
round."""
_TRY_AGAIN = 16


class _Batch:
    """What is taken down of this rank's own micro-batch."""

    def __init__(self, unit: Unit, number: int, inputs: Any, pair: Pair) -> None:
        self.unit = unit
        self.number = number
        self.pair = pair
        self.leaves, self.form = inputs
        self.writer: exchange.BatchWriter | None = None
        self.handles: list[Any] = []
        self.seen: set[int] = set()
        self.arrived: set[int] = set()
        self.shapes: dict[int, Any] = {}
        """Of gradients of outputs that are cut over ranks: how."""
        self.given: set[int] = set()
        """Inputs whose gradients have come."""
        self.wanting: list[int] = []
        """Inputs that have gradients."""
        self.valid = True
        self.closed = False
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


@dataclass(slots=True)
class _Result:
    """Digests of what came of a computation; of gradients by parameter, of outputs by place."""

    gradients: list[int | None]
    made: dict[int, int] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    """What was given to other ranks otherwise than then."""

    def differences(self, theirs: "_Result", unit: Unit) -> list[str]:
        """Names of what differs. What one of the two has not seen is no difference."""
        pairs = enumerate(zip(self.gradients, theirs.gradients, strict=True))
        return [
            *self.passed,
            *(unit.name_of(at) for at, (a, b) in pairs if None not in (a, b) and a != b),
            *(
                f"output {at}"
                for at, value in self.made.items()
                if theirs.made.get(at, value) != value
            ),
        ]


class Replays:
    """Of models and blocks of which other ranks hold the same parameters."""

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
        self.passing = passing.Passing(self._keep_passed)
        self.computing = False
        """A batch is being computed again."""
        self.takes_first = False
        """No forward of the last step was to be reduced at once."""
        self._reduced = False
        self._forwards = 0
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

    @property
    def turn(self) -> int:
        """The number of this round, alike on all ranks."""
        assert self._pace is not None
        return (self._steps + 1) // self._pace.every

    # --- the owner -----------------------------------------------------------------------------

    def begin(self, module: Any, unit_of: Callable[[], Unit], args: Any, kwargs: Any) -> None:
        """A module is about to be computed."""
        torch = sys.modules["torch"]
        if self._batch is not None or not torch.is_grad_enabled() or not module.training:
            return
        began = time.thread_time()
        unit = unit_of()
        self.why_not = unit.why_not()
        if self.why_not:
            return
        leaves, form = torch.utils._pytree.tree_flatten((args, kwargs))
        if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            self.why_not = "its inputs are more than tensors"
            return
        number = self._steps + 1
        pair = pair_of(unit.members, self._rank, self._local, self.turn)
        batch = self._batch = _Batch(unit, number, (leaves, form), pair)
        path = self._path(self._rank, number)
        batch.writer = exchange.BatchWriter(path, number, len(unit.parameters))
        batch.conditions = f"{purity.conditions(module)} {self._held(module)}"
        content = {
            "leaves": [_kept(leaf) for leaf in leaves],
            "form": f"{form} {[_cut(leaf) for leaf in leaves]}",
            "random": {k: v.cpu() for k, v in purity.random_state().items()},
            "autocast": purity.autocast_state(),
            "conditions": batch.conditions,
        }
        self._write(batch, content)
        batch.operations = self._operations()
        self.passing.count = 0
        self.passing.taking = unit.gathered and not self.why_not
        self._cost = time.thread_time() - began

    def _write(self, batch: _Batch, content: dict[str, Any]) -> None:
        if batch.writer is None:
            return
        try:
            batch.writer.piece(content)
        except exchange.TooLarge:
            self._drop(valid=False)
            self.why_not = "what goes in and out is too large to be copied"
            return
        self._on_its_way(batch)

    def _keep_passed(self, passed: passing.Passed) -> None:
        if self._batch is not None:
            what = (passed.what, str(passed.given), passed.got)
            self._guard(self._write, self._batch, {"passed": [what]})

    def _on_its_way(self, batch: _Batch) -> None:
        if batch.pair.reader not in self._local:
            self._send(batch.number, batch.pair.reader)

    def _held(self, module: Any) -> str:
        """Of all parameters. Replicas that have gone apart compute other gradients, and whoever
        computes them is not to blame."""
        held = [int(self._fingerprints.of(p)) for p in module.parameters() if local(p).numel()]
        return hashlib.blake2b(repr(held).encode(), digest_size=8).hexdigest()

    def saw_forward(self, reduced: bool) -> None:
        """A wrapped model is being computed; `reduced`: so will be its gradients."""
        self._reduced = self._reduced or reduced
        self._forwards += 1

    def computed(self, module: Any, output: Any) -> None:
        """The outputs are there; their gradients come with the backward pass."""
        batch = self._batch
        if batch is None or batch.writer is None or batch.unit.module is not module:
            return
        began = time.thread_time()
        outputs = tensors_in(output)
        if batch.handles:  # another micro-batch, whose gradients are not those of this one
            for tensor in outputs:
                if tensor.requires_grad:
                    hook = self._hook(self._another, batch, 0)
                    batch.handles.append(tensor.register_hook(hook))
            return
        self.passing.taking = False
        if self._operations() - self.passing.count != batch.operations:
            self.why_not = "its forward talks to other ranks"
            self._drop(valid=False)
            return
        if purity.nests(outputs):
            self.why_not = "a backward pass of its own is within its backward pass"
            self._drop(valid=False)
            return
        self._write(batch, {"made": {at: str(self._digest(t)) for at, t in enumerate(outputs)}})
        for at, tensor in enumerate(outputs):
            if tensor.requires_grad:
                batch.handles.append(tensor.register_hook(self._hook(self._output, batch, at)))
        for at, parameter in enumerate(batch.unit.parameters):
            batch.handles.append(parameter.register_hook(self._hook(self._gradient, batch, at)))
        if batch.unit.gathered:
            batch.wanting = [at for at, leaf in enumerate(batch.leaves) if _wants(leaf)]
            for at in batch.wanting:
                hook = self._hook(self._input, batch, at)
                batch.handles.append(batch.leaves[at].register_hook(hook))
        self._cost += time.thread_time() - began

    def _digest(self, tensor: Any) -> int:
        return int(self._fingerprints.of(tensor)) & 0xFFFFFFFFFFFFFFFF

    def _hook(
        self, look: Callable[[_Batch, int, Any], None], batch: _Batch, at: int
    ) -> Callable[[Any], None]:
        def arrived(gradient: Any) -> None:
            began = time.thread_time()
            if not batch.closed and batch.writer is not None:
                self._guard(look, batch, at, gradient)
            self._cost += time.thread_time() - began

        return arrived

    def _output(self, batch: _Batch, at: int, gradient: Any) -> None:
        if at in batch.arrived or batch.seen:
            batch.valid = False  # a second backward pass: these are parts of gradients
            return
        batch.arrived.add(at)
        batch.shapes[at] = getattr(gradient, "_spec", None)
        self._write(batch, {"gradients": {at: _kept(gradient)}, "cut": {at: _cut(gradient)}})
        self.passing.taking = batch.unit.gathered and not self.why_not

    def _gradient(self, batch: _Batch, at: int, gradient: Any) -> None:
        if not batch.arrived or batch.writer is None:
            return  # of an earlier micro-batch
        if at in batch.seen:
            batch.valid = False
            return
        batch.seen.add(at)
        batch.writer.digest(at, self._digest(gradient))
        self._complete(batch)

    def _input(self, batch: _Batch, at: int, gradient: Any) -> None:
        if batch.arrived:
            batch.given.add(at)
            self._complete(batch)

    def _another(self, batch: _Batch, at: int, gradient: Any) -> None:
        """The backward pass of another micro-batch begins."""
        if batch.arrived:
            self._close(batch)

    def _complete(self, batch: _Batch) -> None:
        whole = len(batch.seen) == len(batch.unit.parameters)
        if whole and len(batch.given) == len(batch.wanting) and batch.valid:
            self._close(batch)

    def _close(self, batch: _Batch) -> None:
        """Nothing more belongs to it."""
        self.passing.taking = False
        batch.closed = True
        if batch.writer is not None and batch.valid and batch.arrived and batch.seen:
            batch.writer.complete()
            self._on_its_way(batch)

    # --- the neighbour -------------------------------------------------------------------------

    def stepping(self) -> None:
        """All gradients are reduced, and the parameters are still those that they are of."""
        batch, began = self._batch, time.thread_time()
        if batch is None:
            return
        if not batch.closed:
            self._close(batch)  # parameters that take no part in this batch
        whole = batch.valid and bool(batch.arrived) and bool(batch.seen)
        self._drop(valid=whole)
        if not whole or batch.unit.module is None or self.why_not:
            return
        found, waited = self._found(batch)
        if found is not None:
            self._compare(batch, *found)
        assert self._pace is not None
        cost = self._cost + time.thread_time() - began + waited
        self._pace.looked(batch.number, cost if self.looks > 1 else 0.0)

    def _found(self, batch: _Batch) -> tuple[exchange.Content | None, float]:
        """What the owner has left for this rank, and the seconds that this rank slept for it."""
        owner = batch.pair.owner
        what = (self._path(owner, batch.number), batch.number, len(batch.unit.parameters))
        if owner in self._local:
            return exchange.read(*what), 0.0
        began = time.monotonic()
        assert self._pace is not None
        waits = self._vain < _MOST_VAIN or self.turn % _TRY_AGAIN == 0
        patience = _LONG_PATIENCE_SECONDS if self._pace.unlimited else _PATIENCE_SECONDS
        found = exchange.arrived(*what, patience if waits else 0.0)
        self._vain = 0 if found is not None else self._vain + 1
        return found, time.monotonic() - began

    def stepped(self) -> None:
        self._steps += 1
        if self._forwards:
            self.takes_first = not self._reduced
        self._reduced, self._forwards = False, 0

    def _drop(self, *, valid: bool) -> None:
        self.passing.taking = False
        if self._batch is not None:
            self._batch.valid = self._batch.valid and valid
            self._batch.drop()
        self._batch = None

    def _compare(self, batch: _Batch, content: dict[str, Any], theirs: list[int | None]) -> None:
        unit = batch.unit
        form = f"{batch.form} {[_cut(leaf) for leaf in batch.leaves]}"
        alike = content["conditions"] == batch.conditions and content["form"] == form
        cut = {at: _cut_as(spec) for at, spec in batch.shapes.items()}
        if not alike or not content["gradients"] or content["cut"] != cut or not _room(unit.module):
            return
        made = {at: int(value) for at, value in content["made"].items()}
        left = _Result(theirs, made)
        first = self._compute(batch, content)
        if first is None:
            return
        self.looks += 1
        self.far += batch.pair.owner not in self._local
        differ = first.differences(left, unit)
        if not differ:
            self._failed, self._clean_ns = 0, time.time_ns()
            return
        second = self._compute(batch, content)
        if second is None:
            return
        again = "neither"
        if not second.differences(left, unit):
            again = "first"
        elif second == first:
            again = "second"
        self._failed += 1
        if self._failed >= _MOST_FAILED:
            self.why_not = "its numbers are others each time"
        self._tell(
            check="replay", subject=differ[0], peer=batch.pair.owner, ring=batch.pair.size,
            again=again, count=batch.number, looks=self.looks, failed=self._failed,
            tensors=tuple(differ[:_MOST_NAMED]), differ=len(differ),
            total=len(theirs) + len(made) + len(content["passed"]), clean_ns=self._clean_ns,
        )  # fmt: skip

    def _compute(self, batch: _Batch, content: dict[str, Any]) -> _Result | None:
        """What `batch.unit` gives for the batch in `content`; None when it cannot be told."""
        self.computing = True
        self.passing.giving([passing.Passed(w, int(g), t) for w, g, t in content["passed"]])
        try:
            with passing.silent():
                found = self._computed_again(batch, content)
        except passing.Talks as talks:
            self.why_not = str(talks)
            return None
        finally:
            self.passing.done()
            self.computing = False
        return None if self.why_not else found

    def _computed_again(self, batch: _Batch, content: dict[str, Any]) -> _Result:
        torch, unit = sys.modules["torch"], batch.unit
        leaves = [
            _placed(theirs, own)
            for theirs, own in zip(content["leaves"], batch.leaves, strict=True)
        ]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, batch.form)
        with unit.as_it_was(), purity.nothing_left(unit.module), torch.enable_grad():
            purity.set_random_state(content["random"])
            with purity.autocast(content["autocast"]):
                output = unit.module(*args, **kwargs)
            tensors = tensors_in(output)
            used = [tensors[at] for at in content["gradients"]]
            given = [
                _like(gradient.to(tensor.device), batch.shapes[at])
                for (at, gradient), tensor in zip(content["gradients"].items(), used, strict=True)
            ]
            wanted = [*unit.leaves, *(leaves[at] for at in batch.wanting)]
            with purity.gradients_aside(unit.leaves):
                found = torch.autograd.grad(used, wanted, given, allow_unused=True)
                if any(parameter.grad is not None for parameter in unit.leaves):
                    self.why_not = "a backward pass of its own is within its backward pass"
            gradients = found[: len(unit.leaves)]
            return _Result(
                [None if each is None else self._digest(each) for each in gradients],
                {at: self._digest(tensor) for at, tensor in enumerate(tensors)},
                tuple(self.passing.wrong),
            )


def _wants(leaf: Any) -> bool:
    torch = sys.modules["torch"]
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _kept(leaf: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return local(leaf.detach()).to("cpu", copy=True)


def _cut(leaf: Any) -> str:
    """How a DTensor is cut over ranks, in words; empty for all else."""
    return _cut_as(getattr(leaf, "_spec", None))


def _cut_as(spec: Any) -> str:
    return "" if spec is None else f"{spec.placements} of {tuple(spec.shape)}"


def _like(part: Any, spec: Any) -> Any:
    """`part` as this rank's part of a tensor that is cut as `spec` says; None: it is whole."""
    if spec is None:
        return part
    tensors = sys.modules["torch.distributed.tensor"]
    return tensors.DTensor(part, spec, requires_grad=False)


def _placed(theirs: Any, own: Any) -> Any:
    """A value of another rank's, where this rank has its own."""
    torch = sys.modules["torch"]
    if not isinstance(theirs, torch.Tensor) or not isinstance(own, torch.Tensor):
        return theirs
    placed = theirs.to(own.device, copy=True)
    return _like(placed, getattr(own, "_spec", None)).requires_grad_(own.requires_grad)


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
