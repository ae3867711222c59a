"""What is digested around the steps of an optimizer: the gradients as they are used, parameters
before and after, and the optimizer's state a slice at a time."""

import contextlib
import itertools
import json
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from harness.worker.digests import layouts
from harness.worker.digests.books import (
    AT_REST,
    BUFFERS,
    FLAT,
    GRADIENTS,
    LEFT,
    PARAMETERS,
    STATE,
    Book,
    Entry,
    Teller,
)
from harness.worker.digests.deeds import Deeds
from harness.worker.digests.layouts import Group, Models
from harness.worker.digests.pace import Pace, scattered
from harness.worker.unseen import Unseen, unwatchable

SLICES = 8
"""Of the optimizer's state: one is digested at a look, and all of them at the first one, that
later ones have something to differ from."""
_LEARNING = 4
"""Looks after which what the program reduces by hand is known."""


class Watched:
    """One optimizer. Counts of looks at parameters are 2 s before step s, 2 s + 1 after it."""

    def __init__(
        self,
        optimizer: Any,
        number: int,
        teller: Teller,
        pace: Pace,
        deeds: Deeds,
        closely: int = 0,
        reread: str = "",
    ) -> None:
        """Of the first `closely` steps, each is looked at, with the whole state, and the words of
        `reread` (JSON of orders.Reread) are told, where it is of this optimizer."""
        self.count = 0
        asked = json.loads(reread) if reread else None
        self._reread = asked if asked and asked["clock"] == number else None
        self._closely = closely
        self._teller = teller
        self._pace = pace
        self._deeds = deeds
        self._whole = layouts.of_optimizer(optimizer)
        self._parameters = Book(teller, PARAMETERS, number, clock=number)
        self._gradients = Book(teller, GRADIENTS, number, clock=number)
        slices = [number * SLICES + at for at in range(SLICES)]
        self._states = [Book(teller, STATE, each, clock=number) for each in slices]
        self._resting = [Book(teller, AT_REST, each, clock=number) for each in slices]
        self._left = [Book(teller, LEFT, each, clock=number) for each in slices]
        self._buffers = Book(teller, BUFFERS, number)
        self._known: dict[int, Entry] = {}
        self._models = Models(())
        self._looks = 0
        self._looked = False
        """Whether the last step was looked at: then what it left is, before the next."""
        self._cost = 0.0
        self._together = 1
        """Slices of the state at a look: as many as there is room for, as only the rank itself can
        tell what changes between two steps."""
        self._slices: list[int] = []
        """Those of the last look."""

    @property
    def learning(self) -> bool:
        return self._looks < _LEARNING

    def before(self, optimizer: Any) -> None:
        """The gradients are what they are; the parameters should be as they were left."""
        self._teller.flush()
        self._teller.close.turn()
        count = self.count + 1
        if self._teller.close.any:
            self._keep_what_goes_in(optimizer, count)
        chained, due = self._looked or count == 1, self._due(count)
        self._cost = 0.0
        if not chained and not due:
            return
        began = time.thread_time()
        parameters = _parameters(optimizer)
        with_gradient = [p for p in parameters if p.grad is not None and not p.grad.is_sparse]
        self._learn(parameters, with_gradient)
        if chained:
            self._look_at_parameters(parameters, 2 * count)
            if self.count:
                self._look_at_state(optimizer, parameters, self._resting, self._slices)
        if due:
            gradients = [p.grad for p in with_gradient]
            self._gradients.look(
                gradients, with_gradient, lambda: self._entries(with_gradient), count
            )
        self._cost = time.thread_time() - began

    def _keep_what_goes_in(self, optimizer: Any, count: int) -> None:
        """Of the parameters whose update the agent wants to have computed again."""
        for request in self._teller.close.referees(count):
            parameters = _parameters(optimizer)
            at = self._parameters.position(request)
            if at is not None and at < len(parameters):
                with Unseen():
                    self._teller.close.before(request, optimizer, parameters[at])

    def after(self, optimizer: Any) -> None:
        """The parameters are updated."""
        self.count += 1
        if self._teller.close.any:
            self._close_up(optimizer)
        self._looked = self._due(self.count)
        if not self._looked:
            return
        began = time.thread_time()
        self._teller.flush()
        parameters = _parameters(optimizer)
        self._look_at_parameters(parameters, 2 * self.count + 1)
        told, left = self._chosen(min(SLICES, len(parameters)))
        self._slices = [*told, *left]
        self._look_at_state(optimizer, parameters, self._states, told)
        self._look_at_state(optimizer, parameters, self._left, left)
        self._look_at_buffers()
        if self._reread is not None and self.count <= self._closely:
            self._tell_again(optimizer, parameters, self._reread)
        cost = self._cost + time.thread_time() - began
        self._looks += 1
        if self.count <= self._closely:
            return  # the pace is of looks that it has asked for itself
        # The first look makes the plans; what comes before the step it made comes again.
        self._pace.looked(self.count, cost if self._looks > 1 else 0.0)
        room = self._pace.room(cost)
        if room >= SLICES:
            self._together = SLICES
        elif room >= 2:
            self._together = min(SLICES, 2 * self._together)
        elif room < 1:
            self._together = max(1, self._together // 2)

    def _look_at_parameters(self, parameters: Sequence[Any], count: int) -> None:
        self._parameters.look(parameters, parameters, lambda: self._entries(parameters), count)

    @property
    def _alone(self) -> bool:
        """Whether this rank holds what nobody has a copy of: only itself can tell what changes."""
        cut = any(group.how == "sharded" for each in self._known.values() for group in each.groups)
        return cut or self._whole is not None

    def _look_at_state(
        self,
        optimizer: Any,
        parameters: Sequence[Any],
        books: Sequence[Book],
        slices: Sequence[int],
    ) -> None:
        for at in slices:
            mine = parameters[at :: min(SLICES, len(parameters))]
            self._look_at_slice(optimizer, mine, books[at])

    def _chosen(self, slices: int) -> tuple[list[int], list[int]]:
        """Which of the slices of the state are looked at: whatever the rank has room for, the one
        whose turn it is on all ranks is among them. First those that are told to others, then those
        that are for the rank's own comparison: all but that one where others have copies."""
        if self.count <= max(1, self._closely):
            return list(range(slices)), []
        if not slices:
            return [], []
        turn, together = scattered(self.count, slices), self._together
        chosen = sorted({(turn + at * SLICES // together) % slices for at in range(together)})
        if self._alone:
            return chosen, []
        return [turn], [each for each in chosen if each != turn]

    def _due(self, count: int) -> bool:
        return 0 < count <= self._closely or self._pace.due(count)

    def _look_at_slice(self, optimizer: Any, parameters: Sequence[Any], book: Book) -> None:
        named = _state_of(optimizer, parameters)

        def entries() -> list[Entry]:
            owners = self._entries([parameter for parameter, _, _ in named])
            return [
                Entry(
                    name=f"{key} of {owner.name}",
                    groups=() if self._whole is not None else owner.groups,
                    marks=(*owner.marks, "cut") if self._whole is not None else owner.marks,
                )
                for owner, (_, key, _) in zip(owners, named, strict=True)
            ]

        if named:
            owners = [parameter for parameter, _, _ in named]
            book.look([value for _, _, value in named], owners, entries, self.count)

    def _close_up(self, optimizer: Any) -> None:
        """Answer what is asked of parameters and state, whether or not they are looked at now."""
        parameters = _parameters(optimizer)
        self._parameters.close_up(parameters, 2 * self.count + 1, self.count)
        slices = min(SLICES, len(parameters))
        for at, book in enumerate(self._states[:slices]):
            state = [value for _, _, value in _state_of(optimizer, parameters[at::slices])]
            book.close_up(state, self.count, self.count)

    def _tell_again(self, optimizer: Any, parameters: Sequence[Any], asked: dict[str, Any]) -> None:
        """The words that were asked for, as they are after this step."""
        key, _, owner = str(asked["name"]).rpartition(" of ")
        for parameter in parameters:
            if self._known[id(parameter)].name == owner:
                tensor = optimizer.state.get(parameter, {}).get(key) if key else parameter
                count = self.count if key else 2 * self.count + 1
                if tensor is not None:
                    with Unseen():
                        self._teller.close.again(asked, tensor, count)

    def _look_at_buffers(self) -> None:
        declared, modules = self._models.buffers(), self._models.outermost()
        named: list[tuple[str, Any, tuple[Group, ...], tuple[str, ...]]] = []
        for module in modules:
            for name, owner, key, buffer in _buffers(module):
                group, kept = declared.get(id(buffer), (None, False))
                if kept or key in owner._non_persistent_buffers_set or not _readable(buffer):
                    continue
                known = () if group is None else (group,)
                named.append((layouts.plain(name), buffer, known, ()))
        if named:
            self._buffers.look(
                [buffer for _, buffer, _, _ in named],
                modules,
                lambda: [Entry(name=n, groups=g, marks=m) for n, _, g, m in named],
                self.count,
            )

    # --- what is known of the parameters -------------------------------------------------------

    def _learn(self, parameters: Sequence[Any], with_gradient: Sequence[Any]) -> None:
        """Names and groups: anew when there are other parameters, and at the first looks, which
        show what the program reduces by hand."""
        ids = {id(parameter) for parameter in parameters}
        if not ids <= self._known.keys():
            self._models = Models(parameters)
        elif not self.learning or not self._deeds.any:
            return
        summed = self._deeds.of_gradients([p.grad for p in with_gradient])
        reduced = {
            id(parameter): found
            for parameter, found in zip(with_gradient, summed, strict=True)
            if found[0]
        }
        known = self._describe(parameters, reduced)
        if known != self._known:
            self._known = known
            states = (*self._states, *self._resting, *self._left)
            for book in (self._parameters, self._gradients, *states):
                book.renew()

    def _describe(
        self, parameters: Sequence[Any], reduced: dict[int, tuple[tuple[int, ...], bool]]
    ) -> dict[int, Entry]:
        wrapped = self._models.groups()
        names = self._names()
        over = {members for members, _ in reduced.values()}
        found: dict[int, Entry] = {}
        for at, parameter in enumerate(parameters):
            before = self._known.get(id(parameter))
            groups = layouts.declared(parameter, wrapped.get(id(parameter)))
            if self._whole is not None and not groups:
                groups = (self._whole,)
            known = before.groups if before else ()
            by_hand = [group for group in known if group.how in ("hand", "left")]
            members, flat = reduced.get(id(parameter), ((), before is not None and before.flat))
            if members and not groups:
                by_hand = [Group("hand", "", members)]
            elif before is None and not groups and len(over) == 1 and _varies(parameter):
                by_hand = [Group("left", "", *over)]
            name, marks = names.get(id(parameter), (f"#{at} {list(parameter.shape)}", ()))
            # Megatron's word for what is no replica over all data-parallel ranks.
            if getattr(parameter, "allreduce", True) is False:
                marks = (*marks, "expert")
            if flat and not groups:
                marks = (*marks, FLAT)
            kept = tuple(each for each in (*groups, *by_hand) if len(each.members) > 1)
            found[id(parameter)] = Entry(name=name, groups=kept, marks=marks)
        return found

    def _names(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        """Name and marks of each parameter, by its id."""
        found: dict[int, tuple[str, tuple[str, ...]]] = {}
        for module in self._models.outermost():
            with contextlib.suppress(Exception):
                for prefix, owner in module.named_modules():
                    marks = ("norm",) if "Norm" in type(owner).__name__ else ()
                    for key, parameter in owner.named_parameters(recurse=False):
                        name = layouts.plain(f"{prefix}.{key}" if prefix else key)
                        found.setdefault(id(parameter), (name, marks))
        return found

    def _entries(self, parameters: Sequence[Any]) -> list[Entry]:
        return [self._known[id(parameter)] for parameter in parameters]


class Optimizers:
    """All optimizers of the process, numbered by their first step."""

    def __init__(
        self,
        teller: Teller,
        pace: Callable[[], Pace],
        deeds: Deeds,
        closely: int = 0,
        reread: str = "",
    ) -> None:
        self._teller = teller
        self._pace = pace
        self._deeds = deeds
        self._closely = closely
        self._reread = reread
        self._watched: dict[int, tuple[Any, Watched]] = {}
        self._numbers = itertools.count()
        self._within: list[Any] = []
        self._seen = False

    @property
    def any(self) -> bool:
        return self._seen

    @property
    def learning(self) -> bool:
        """Whether what the program reduces by hand is news."""
        return not self._watched or any(each.learning for _, each in self._watched.values())

    def before(self, optimizer: Any) -> None:
        """A step begins. An optimizer that steps within another's step belongs to that one."""
        if self._within and any(each is optimizer for each in self._within):
            self._within.clear()  # its last step raised
        self._within.append(optimizer)
        if len(self._within) > 1 or unwatchable():
            return
        self._of(optimizer).before(optimizer)

    def after(self, optimizer: Any) -> None:
        if not any(each is optimizer for each in self._within):
            return
        while self._within.pop() is not optimizer:
            pass  # a step within that raised
        if not self._within and not unwatchable():
            self._of(optimizer).after(optimizer)
            self._deeds.clear()

    def _of(self, optimizer: Any) -> Watched:
        key = id(optimizer)
        known = self._watched.get(key)
        if known is None or known[0]() is not optimizer:
            watched = Watched(
                optimizer, next(self._numbers), self._teller, self._pace(), self._deeds,
                self._closely, self._reread,
            )  # fmt: skip
            gone = weakref.ref(optimizer, lambda _: self._watched.pop(key, None))
            known = self._watched[key] = (gone, watched)
            self._seen = True
        return known[1]


def _parameters(optimizer: Any) -> list[Any]:
    found = [p for group in optimizer.param_groups for p in group["params"]]
    return [parameter for parameter in found if parameter.numel()]


def _state_of(optimizer: Any, parameters: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """Parameter, key and value of what the optimizer keeps of `parameters`."""
    found: list[tuple[Any, str, Any]] = []
    for parameter in parameters:
        state = optimizer.state.get(parameter)
        if not isinstance(state, dict):
            continue
        for key, value in state.items():
            if _readable(value) and value.numel() > 1:
                found.append((parameter, str(key), value))
    return found


def _varies(parameter: Any) -> bool:
    """Whether it has a gradient, and is not one and the same number all over."""
    if parameter.grad is None or parameter.numel() < 2:
        return False
    values = parameter.detach().reshape(-1)
    return bool((values != values[0]).any())


def _readable(value: Any) -> bool:
    torch = sys.modules["torch"]
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_meta
        and value.numel() > 0
    )


def _buffers(module: Any) -> list[tuple[str, Any, str, Any]]:
    """Full name, module, its name there, and buffer, of all buffers of floating point."""
    found = []
    with contextlib.suppress(Exception):
        for prefix, owner in module.named_modules():
            for key, buffer in owner.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    found.append((f"{prefix}.{key}" if prefix else key, owner, key, buffer))
    return found
