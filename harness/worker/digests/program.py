"""Digests for programs without an optimizer of torch: the variables at the lines that call
collectives.

Which of them are replicas nobody declares; it is learnt from ranks that stay equal, and from what
the program sums over which group. Reading changes nothing and keeps no tensor alive.
"""

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any

from harness.worker.digests.books import (
    VARIABLES,
    Book,
    Entry,
    Teller,
    local,
)
from harness.worker.digests.deeds import Deeds
from harness.worker.digests.layouts import Group
from harness.worker.digests.pace import Pace
from harness.worker.rhythm import Rhythm, namespace
from harness.worker.unseen import Unseen

_MOST_PLACES = 8
_MOST_FRAMES = 24
_MOST_CHAIN = 6
_MOST_TENSORS = 64
_MOST_ELEMENTS = 1 << 22
_MOST_ITEMS = 64
_MOST_NAMES = 2
_AVERAGED = "averaged"
"""Mark of a variable that the program itself sums over ranks."""
_STEADY = 3
"""Looks in a row at the same tensor object, before it counts as one that is kept."""


class _Place:
    """One line of the program."""

    def __init__(self, name: str, pace: Pace, book: Book) -> None:
        self.name = name
        self.count = 0
        self.pace = pace
        self.book = book
        self.entries: list[Entry] = []
        self.looks = 0
        self.rhythm = Rhythm()


class _Seen:
    """One variable, as it was when it was looked at last."""

    def __init__(self, content: str) -> None:
        self.content = content
        self.object: weakref.ref[Any] | None = None
        self.times = 0
        self.averaged = False
        """The program has summed it itself: until then it is meant to differ."""


class Program:
    """The variables of this process's program."""

    def __init__(
        self,
        teller: Teller,
        pace: Callable[[], Pace],
        deeds: Deeds,
        is_framework: Callable[[CodeType], bool],
        closely: int = 0,
    ) -> None:
        """Of the first `closely` calls at a place, each is looked at."""
        self._closely = max(2, closely)
        self._teller = teller
        self._pace = pace
        self._deeds = deeds
        self._is_framework = is_framework
        self._places: dict[tuple[int, int], _Place | None] = {}
        self._codes: list[CodeType] = []
        self._seen: dict[tuple[str, tuple[int, ...]], _Seen] = {}

    def look(self, frame: FrameType | None) -> None:
        """A collective is about to be called below `frame`."""
        chain = self._users(frame)
        if not chain:
            return
        place = self._place(chain[0])
        if place is None:
            return
        place.count += 1
        if place.count > self._closely and not place.pace.due(place.count):
            return
        began = time.thread_time()
        counters, _, _ = place.rhythm.look(chain, place.count)
        found = _tensors(chain)
        with Unseen():
            entries = [self._entry(name, tensor, module) for name, tensor, module in found]
        if entries != place.entries:
            place.entries = entries
            place.book.renew()
        if entries:
            tensors = [tensor for _, tensor, _ in found]
            place.book.look(tensors, (), lambda: entries, place.count, sum(counters[1::2]))
            self._teller.close.turn()
            place.book.close_up(tensors, place.count, place.count)
        place.looks += 1
        if 2 < place.count <= self._closely:
            return  # the pace is of looks that it has asked for itself
        cost = time.thread_time() - began
        place.pace.looked(place.count, cost if place.looks > 1 else 0.0)

    def _users(self, frame: FrameType | None) -> list[FrameType]:
        found: list[FrameType] = []
        for _ in range(_MOST_FRAMES):
            if frame is None or len(found) == _MOST_CHAIN:
                break
            if not self._is_framework(frame.f_code):
                found.append(frame)
            frame = frame.f_back
        return found

    def _place(self, frame: FrameType) -> _Place | None:
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._places:
            self._places[key] = None
            if len(self._codes) < _MOST_PLACES:
                self._codes.append(frame.f_code)  # kept alive: the place is known by its id
                code = frame.f_code
                name = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_name}"
                book = Book(self._teller, VARIABLES, 0, place=name)
                self._places[key] = _Place(name, self._pace(), book)
        return self._places[key]

    def _entry(self, name: str, tensor: Any, module: Any) -> Entry:
        seen = self._seen.get((name, tuple(tensor.shape)))
        if seen is None:
            seen = self._seen[name, tuple(tensor.shape)] = _Seen(_content(tensor))
        if seen.object is not None and seen.object() is tensor:
            seen.times += 1
        else:
            seen.object, seen.times = weakref.ref(tensor), 1
        marks = [seen.content]
        gradient = tensor.grad if tensor.is_leaf and tensor.requires_grad else None
        exact = () if gradient is None else self._deeds.of(gradient)
        summed = exact or self._deeds.shapes.get(tuple(tensor.shape), ())
        if exact:
            marks.append("gradient")
        if seen.times >= _STEADY:
            marks.append("kept")
        seen.averaged = seen.averaged or bool(self._deeds.of(tensor))
        if seen.averaged:
            marks.append(_AVERAGED)
        if tensor.is_leaf and tensor.requires_grad:
            marks.append("leaf")
        if module is not None:
            marks += ["buffer"] if _is_buffer(module, tensor) else ["parameter"]
            marks += ["norm"] if "Norm" in type(module).__name__ else []
        groups = (Group("hand", "", summed),) if summed else ()
        return Entry(name=name, groups=groups, marks=tuple(marks))


def _content(tensor: Any) -> str:
    """What is in it at first sight: equal constants make no replicas."""
    flat = local(tensor).detach().reshape(-1)
    if not flat.numel():
        return "mixed"  # none of it is this rank's
    first = flat[0]
    if not bool((flat == first).all()):
        return "mixed"
    value = float(first)
    return "zeros" if value == 0 else "ones" if value == 1 else "constant"


def _is_buffer(module: Any, tensor: Any) -> bool:
    return any(tensor is each for each in module._buffers.values())


def _tensors(chain: Iterable[FrameType]) -> list[tuple[str, Any, Any]]:
    """Name, tensor, and the module that holds it, of the variables that could be state."""
    found: dict[int, tuple[list[tuple[str, bool]], Any, Any]] = {}
    elements = 0
    for name, plain, tensor, module in _variables(chain):
        if id(tensor) in found:
            names, _, known = found[id(tensor)]
            found[id(tensor)] = [*names, (name, plain)], tensor, known or module
        elif _could_be_state(tensor):
            elements += tensor.numel()
            if len(found) >= _MOST_TENSORS or elements > _MOST_ELEMENTS:
                break
            found[id(tensor)] = [(name, plain)], tensor, module
    named = [(_name(names), tensor, module) for names, tensor, module in found.values()]
    return sorted(named, key=itemgetter(0))


def _name(names: list[tuple[str, bool]]) -> str:
    """What a tensor goes by. In two lists it needs both names: one may hold other tensors on each
    rank. A plain variable is what a loop has come to just now."""
    held = [name for name, plain in names if not plain] or [names[0][0]]
    return "=".join(held[:_MOST_NAMES])


def _variables(chain: Iterable[FrameType]) -> Iterator[tuple[str, bool, Any, Any]]:
    """Name, whether it is a variable itself, tensor, and module, of all that is there."""
    for frame in chain:
        function = frame.f_code.co_name
        prefix = "" if function == "<module>" else f"{function}."
        with namespace(frame) as variables:
            named = sorted(variables.items()) if variables else []
        for name, value in named:
            if name.startswith("__"):
                continue
            for full, tensor, module in _within(f"{prefix}{name}", value, depth=0):
                yield full, tensor is value, tensor, module


def _within(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """The tensors of a variable: itself, in a list or dictionary, in a module, in an object of the
    program's own classes."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield name, value, None
    elif isinstance(value, torch.nn.Module):
        for prefix, module in value.named_modules():
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and key not in module._non_persistent_buffers_set:
                    yield ".".join(filter(None, (name, prefix, key))), tensor, module
    elif type(value) in (list, tuple) and depth < 2 and len(value) <= _MOST_ITEMS:
        for at, item in enumerate(value):
            yield from _within(f"{name}[{at}]", item, depth + 1)
    elif type(value) is dict and depth < 2 and len(value) <= _MOST_ITEMS:
        for key, item in value.items():
            yield from _within(f"{name}[{key!r}]", item, depth + 1)
    elif depth == 0 and type(type(value)) is type and _of_the_program(type(value)):
        fields = getattr(value, "__dict__", None)
        if type(fields) is dict and len(fields) <= _MOST_ITEMS:
            for key, item in list(fields.items()):
                yield from _within(f"{name}.{key}", item, depth + 1)


def _of_the_program(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or (
        module is not None and not kind.__module__.startswith(("torch", "harness", "builtins"))
    )


def _could_be_state(tensor: Any) -> bool:
    """Whether it may outlive a step: what autograd has computed does not, single numbers count
    things, and integers are data."""
    torch = sys.modules["torch"]
    return (
        tensor.layout is torch.strided
        and not tensor.is_meta
        and tensor.is_floating_point()
        and tensor.numel() > 1
        and tensor.grad_fn is None
    )
