"""Activation checkpointing computes blocks twice: both times the outputs should be the same bits.

Nothing of what a block calls is changed: torch ends a recomputation as soon as it has what it
needs, and only blocks that call no collective are asked to go on to their end.
"""

import functools
import inspect
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from harness.worker.audits.budget import Budget
from harness.worker.audits.fingerprints import Fingerprints, tensors_in
from harness.worker.audits.gradients import Guard, Tell
from harness.worker.audits.names import name_of

_MORE_LOOKS = 2
"""At the same block, after one that came out bad."""
_MOST_BLOCKS = 4096
_MOST_TOLD = 8


class _Block:
    """What is checkpointed: a module, or a function that does not show of which one it is."""

    def __init__(self, code: Any, module: Any, number: int) -> None:
        self.number = number
        self.code = code
        """Kept alive, as the block is known by its id; a module is not."""
        self.module = None if module is None else weakref.ref(module)
        self.passes = 0
        self.quiet = True
        """It has called no collective."""
        self.looks = 0
        self.failed = 0
        self.again = 0
        self.clean_ns = 0
        self.first: dict[str, Any] = {}
        """What is told of the first look that came out bad."""

    def name(self) -> str:
        module = None if self.module is None else self.module()
        return str(self.code.co_name) if module is None else name_of(module)


class Recomputes:
    """The blocks of this process."""

    def __init__(
        self,
        tell: Tell,
        guard: Guard,
        step: Callable[[], int],
        operations: Callable[[], int],
        share: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` is that of the budget, which earns `share` of what it shows."""
        self._tell = tell
        self._step = step
        self._guard = guard
        self._operations = operations
        self._budget = Budget(share, clock)
        self._fingerprints = Fingerprints()
        self._blocks: dict[int, _Block] = {}
        self._arriving: list[tuple[_Block, Any, Any]] = []
        """On a GPU: whether the outputs differ, and when that is known."""
        self._told = 0
        self._next = 0
        """The block whose turn it is."""
        self._waited = 0
        """Blocks that came since the last look, without being it."""
        self.looks = 0

    def begin(self, function: Any) -> "_Pass | None":
        """A block is about to be computed for the first time; None when it is not looked at."""
        if len(self._blocks) >= _MOST_BLOCKS:
            return None
        module, code = _module_of(function), getattr(function, "__code__", None)
        if module is None and code is None:
            return None
        key = id(code if module is None else module)
        block = self._blocks.get(key)
        if block is None or (block.module is not None and block.module() is not module):
            number = len(self._blocks) if block is None else block.number
            block = _Block(None if module is not None else code, module, number)
            self._blocks[key] = block
        block.passes += 1
        asked = block.passes == 1 or block.again
        if not asked and not (self._budget.left() and self._has_turn(block)):
            return None
        return _Pass(self, block, function)

    def _has_turn(self, block: _Block) -> bool:
        """All blocks in turn, not always what comes first after the budget has grown; one that does
        not come any more is passed over."""
        if self._budget.unlimited:
            return True
        due = block.number == self._next
        self._waited += 1
        if due or self._waited > len(self._blocks):
            self._next, self._waited = (self._next + 1) % len(self._blocks), 0
        return due

    def stepped(self) -> None:
        while self._arriving and self._arriving[0][1].query():
            block, _, differs = self._arriving.pop(0)
            self._result(block, bool(differs), "", 0, 0)

    # --- of one pass ---------------------------------------------------------------------------

    def first(self, one: "_Pass", output: Any) -> None:
        one.first = self._digests(output)

    def second(self, one: "_Pass", output: Any, third: Callable[[], Any] | None) -> None:
        if one.first is None:
            return
        torch = sys.modules["torch"]
        one.second = self._digests(output)
        if len(one.first) != len(one.second) or not one.first:
            return
        self.looks += 1
        if one.first[0].device.type == "cuda":
            differs = (torch.stack(one.first) != torch.stack(one.second)).any()
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            host.copy_(differs, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._arriving.append((one.block, arrived, host))
            return
        before, after = ([int(each) for each in found] for found in (one.first, one.second))
        again = ""
        if before != after and third is not None:
            once_more = [int(each) for each in self._digests(third())]
            again = "first" if once_more == before else "second"
            again = again if once_more in (before, after) else "neither"
        differ = sum(a != b for a, b in zip(before, after, strict=True))
        self._result(one.block, before != after, again, differ, len(before))

    def _result(self, block: _Block, differs: bool, again: str, differ: int, total: int) -> None:
        block.looks += 1
        block.failed += differs
        if block.again:
            block.again -= 1
            if not block.again:
                self._say(block)
        elif differs and block.failed == 1:
            block.again = _MORE_LOOKS
            block.first = {
                "again": again, "differ": differ, "total": total, "count": block.looks,
                "step": self._step(), "at_ns": time.time_ns(), "clean_ns": block.clean_ns,
            }  # fmt: skip
            self._say(block)
        elif differs:
            self._say(block)
        elif not block.failed:
            block.clean_ns = time.time_ns()

    def _say(self, block: _Block) -> None:
        self._told += 1
        if self._told <= _MOST_TOLD:
            self._tell(
                check="recompute", subject=block.name(), looks=block.looks, failed=block.failed,
                settled=not block.again, **block.first,
            )  # fmt: skip

    def _digests(self, output: Any) -> list[Any]:
        return [self._fingerprints.of(tensor) for tensor in tensors_in(output)]

    def guarded(self, check: Callable[..., None], *arguments: Any) -> None:
        began = time.thread_time()
        self._guard(check, *arguments)
        if self.looks > 1:  # the first one makes what the others use
            self._budget.spent(time.thread_time() - began)

    def charge(self, seconds: float) -> None:
        self._budget.spent(seconds)

    def count(self) -> int:
        return self._operations()


class _Pass:
    """One block, once: stands in for the function that is computed twice."""

    def __init__(self, owner: Recomputes, block: _Block, function: Callable[..., Any]) -> None:
        self._owner = owner
        self.plain = True
        """Nothing of the user's is around the two computations."""
        self.block = block
        self._function = function
        self._calls = 0
        self.first: list[Any] | None = None
        self.second: list[Any] | None = None
        functools.update_wrapper(self, function, updated=())

    @property
    def to_its_end(self) -> bool:
        """Whether the recomputation may go on to the end of the block."""
        return self.block.module is not None and self.block.passes > 1 and self.block.quiet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        again = self._calls == 2
        state = _random_state() if again and self.to_its_end else None
        operations, began = self._owner.count(), time.thread_time()
        output = self._function(*args, **kwargs)
        if again and self.to_its_end:  # what torch would have left out is within this
            self._owner.charge(time.thread_time() - began)
        if self._owner.count() != operations:
            self.block.quiet = False
        if self._calls == 1:
            self._owner.guarded(self._owner.first, self, output)
        elif again:
            third = None
            if state is not None and self.block.quiet and self.plain:
                third = functools.partial(self._third, state, args, kwargs)
            self._owner.guarded(self._owner.second, self, output, third)
        return output

    def _third(self, state: Any, args: Any, kwargs: Any) -> Any:
        """Its outputs once more, from the same random numbers, and nothing left behind."""
        torch = sys.modules["torch"]
        after = _random_state()
        _set_random_state(state)
        try:
            with torch.no_grad():
                return self._function(*args, **kwargs)
        finally:
            _set_random_state(after)


def _random_state() -> Any:
    return sys.modules["torch"].get_rng_state()


def _set_random_state(state: Any) -> None:
    sys.modules["torch"].set_rng_state(state)


def _module_of(function: Any) -> Any:
    """The module that a function computes, where it shows."""
    base = sys.modules["torch.nn.modules.module"].Module
    function = getattr(function, "func", function)  # of functools.partial
    if isinstance(function, base):
        return function
    owner = getattr(function, "__self__", None)
    if isinstance(owner, base):
        return owner
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # still empty
            continue
        if isinstance(content, base):
            found.append(content)
    return found[0] if len(found) == 1 else None


def watch_checkpoints(module: Any, find: Callable[[], Recomputes | None]) -> None:
    """Hook for torch.utils.checkpoint."""
    original = module.checkpoint
    accepts_end = "early_stop" in inspect.signature(original).parameters

    @functools.wraps(original)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return original(function, *args, **kwargs)
        watching = find()
        if watching is None or not kwargs.get("preserve_rng_state", True):
            return original(function, *args, **kwargs)
        one = watching.begin(function)
        if one is None:
            return original(function, *args, **kwargs)
        one.plain = "context_fn" not in kwargs
        if accepts_end and one.to_its_end and not kwargs.get("use_reentrant"):
            kwargs.setdefault("early_stop", False)
        return original(one, *args, **kwargs)

    module.checkpoint = checkpoint
