"""The optimizer's update of a few elements of one parameter, another one each time, computed again
on the rank that owns them: of a shard nobody else can say whether its update was right."""

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.worker.audits.names import named_parameters
from harness.worker.digests.books import local
from harness.worker.digests.pace import Pace, scattered
from harness.worker.unseen import Unseen, unwatchable

_ELEMENTS = 4096
"""At most, at a look."""
_PROVEN = 2
"""Looks that must have come out equal before a difference means anything."""
_MOST_TOLD = 8


@dataclass(slots=True)
class _Look:
    """An update, from before the step until it is judged. `host` are the two answers once they
    have arrived: whether the update differs, and whether the gradient was another one."""

    update: Any
    parameter: Any
    step: int
    """Steps completed before."""
    began_ns: int
    again: dict[str, Any] | None = None
    found: dict[str, Any] | None = None
    host: Any = None
    arrived: Any = None


class _Watched:
    """One optimizer."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.count = 0
        self.looks = self.good = self.failed = 0
        self.off = False
        self.look: _Look | None = None
        self.cost = 0.0


class Updates:
    """`pace` makes what decides when there is a look; `tell` takes a doubt; `step` counts."""

    def __init__(
        self, tell: Callable[..., None], step: Callable[[], int], pace: Callable[[], Pace]
    ) -> None:
        self._tell = tell
        self._step = step
        self._pace = pace
        self._watched: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()

    @property
    def looks(self) -> int:
        """Comparisons that were made, of the optimizers that live."""
        return sum(watched.looks for watched in self._watched.values())

    def stepping(self, optimizer: Any, closure: bool) -> None:
        """A step is about to be made; with a closure, gradients will be others."""
        watched = self._watched.get(optimizer)
        if watched is None:
            watched = self._watched[optimizer] = _Watched(self._pace())
        if watched.look is not None:
            self._judge(watched, optimizer)
        watched.count += 1
        if watched.off or closure or not watched.pace.due(watched.count) or unwatchable():
            return
        from harness.digest.updating import capture

        began = time.thread_time()
        with Unseen():
            parameter, begin, end = _place(optimizer, watched.count)
            update = None if parameter is None else capture(optimizer, parameter, begin, end)
        if update is not None:
            watched.look = _Look(update, parameter, self._step(), time.time_ns())
        watched.cost = time.thread_time() - began

    def stepped(self, optimizer: Any) -> None:
        watched = self._watched.get(optimizer)
        if watched is None or watched.look is None or watched.look.again is not None:
            return
        from harness.digest import updating

        began, look = time.thread_time(), watched.look
        with Unseen():
            found = updating.now(look.update, optimizer, look.parameter)
            if found is None:
                watched.look = None
                return
            look.again = updating.again(look.update)
            gradient = updating.different(found.pop("gradient"), look.update.tensors["gradient"])
            look.found = {name: each.clone() for name, each in found.items()}
            wrong = [updating.different(look.again[name], found[name]).any() for name in found]
            torch = sys.modules["torch"]
            told = torch.stack([torch.stack(wrong).any(), gradient.any()])
            look.host = told
            if told.device.type == "cuda":
                look.host = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
                look.host.copy_(told, non_blocking=True)
                look.arrived = torch.cuda.Event()
                look.arrived.record()
        self._judge(watched, optimizer)
        watched.cost += time.thread_time() - began
        watched.pace.looked(watched.count, watched.cost if watched.looks > 1 else 0.0)

    def _judge(self, watched: _Watched, optimizer: Any) -> None:
        look = watched.look
        if look is None or look.host is None:
            watched.look = None  # its step raised
            return
        if look.arrived is not None and not look.arrived.query():
            return
        watched.look = None
        wrong, other_gradient = look.host.tolist()
        if other_gradient:
            watched.off = True  # something of the program's comes in between
            return
        watched.looks += 1
        if not wrong:
            watched.good += 1
            return
        watched.failed += 1
        if watched.good < _PROVEN:
            watched.off = True  # it was never seen to be the same
        elif watched.failed <= _MOST_TOLD:
            self._say(watched, look, optimizer)

    def _say(self, watched: _Watched, look: _Look, optimizer: Any) -> None:
        from harness.digest import updating

        assert look.again is not None
        assert look.found is not None
        with Unseen():
            once_more = updating.again(look.update)
            steady = not any(
                bool(updating.different(once_more[name], look.again[name]).any())
                for name in look.again
            )
            shows, count = _difference(look)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = dict.fromkeys(["a parameter"])
        with contextlib.suppress(Exception):
            mine = look.parameter
            names = dict.fromkeys(n for n, p in named_parameters(parameters) if p is mine) or names
        name = next(iter(names))
        self._tell(
            check="update",
            subject=name,
            step=look.step,
            at_ns=look.began_ns,
            clean_ns=look.began_ns,
            count=watched.count,
            looks=watched.looks,
            failed=watched.failed,
            again="second" if steady else "neither",
            tensors=(name,),
            differ=count,
            total=look.update.end - look.update.begin,
            shows=shows,
        )


def _place(optimizer: Any, count: int) -> tuple[Any, int, int]:
    """A parameter, and a run of its elements: others at each count."""
    parameters = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and local(parameter).numel()
    ]
    if not parameters:
        return None, 0, 0
    # Large ones have more to look at, so that they come up more often.
    sizes = [-(-local(parameter).numel() // _ELEMENTS) for parameter in parameters]
    at = scattered(count, sum(sizes))
    for parameter, size in zip(parameters, sizes, strict=True):
        if at < size:
            begin = at * _ELEMENTS
            return parameter, begin, min(begin + _ELEMENTS, int(local(parameter).numel()))
        at -= size
    return None, 0, 0


def _difference(look: _Look) -> tuple[str, int]:
    """The first element that is not what it should be, in words, and how many there are."""
    from harness.digest import updating

    assert look.again is not None
    assert look.found is not None
    for name in ("parameter", *look.found):
        which = updating.different(look.again[name], look.found[name]).nonzero().reshape(-1)
        if len(which):
            first = int(which[0])
            flat = look.update.begin + first
            place = []
            for length in reversed(tuple(local(look.parameter).shape)):
                flat, at = divmod(flat, length)
                place.append(str(at))
            where = f"[{', '.join(reversed(place))}]"
            of = "" if name == "parameter" else f"{name} of "
            is_, should = (float(each[name][first]) for each in (look.found, look.again))
            return f"{of}{where} is {is_:.6g} and should be {should:.6g}", len(which)
    return "", 0


def has_closure(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a step was called with one; `args` begin with the optimizer."""
    return any(each is not None for each in (*args[1:2], kwargs.get("closure")))
