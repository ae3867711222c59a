"""A rank's gradients as it has computed them itself, before they are summed over ranks.

Afterwards all ranks hold the same NaN, and nothing tells whose it was. The first parameter of the
model, which the gradient comes to last, is looked at in every step; of the others as many as the
share allows, in turn.
"""

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from harness.worker.audits.budget import Busy
from harness.worker.digests.books import local
from harness.worker.unseen import Unseen

_OUTLIER = 10.0
"""Times the largest norm of all before."""
_LEAST_HISTORY = 20
_MOST_TOLD = 6
_MOST_STRIDE = 1 << 12
_ROUNDS = 2
"""Times the number of parameters: the most steps until each of them has been looked at."""
_MOST_NAMED = 4
_FIRST = 4
"""Parameters, of which the smallest one is looked at in every step."""
Tell = Callable[..., None]
"""Takes the fields of a Doubt."""
Guard = Callable[..., None]
"""Calls what it is given, and lets no exception through."""


class _Watched:
    """One parameter."""

    def __init__(self, name: str, parameter: Any, sharded: bool) -> None:
        self.name = name
        self.parameter = weakref.ref(parameter)
        self.sharded = sharded
        self.size = parameter.numel() if parameter.requires_grad else sys.maxsize
        self.looks = 0
        self.most = 0.0


class LocalGradients:
    """Of the parameters of this process's optimizers."""

    def __init__(self, tell: Tell, guard: Guard, step: Callable[[], int], share: float) -> None:
        self._tell = tell
        self._guard = guard
        self._step = step
        self._share = share
        self._known: dict[int, int] = {}
        """Position in `_watched`, by the parameter's id."""
        self._watched: list[_Watched] = []
        self._always = 0
        """Place of what is looked at in every step: near the begin of the model, where NaN of any
        later layer comes to, and small."""
        self._turn = 0
        self._mask = 0
        self._cost = 0.0
        self._clock = Busy()
        self._began = self._clock()
        self._bad: list[int] = []
        self._bad_step = 0
        self._pending: list[tuple[int, Any]] = []
        """On a GPU: position, and norm."""
        self._arriving: list[tuple[Any, Any, list[int]]] = []
        self._told = 0
        self._outliers = 0
        self._clean_ns = 0

    def attach(self, named: Sequence[tuple[str, Any]]) -> None:
        """Look at the gradients of these parameters from now on."""
        for name, parameter in named:
            if self._place(parameter) is not None or not parameter.is_leaf:
                continue
            sharded = hasattr(parameter, "_local_tensor")
            place = self._known[id(parameter)] = len(self._watched)
            self._watched.append(_Watched(name, parameter, sharded))
            if parameter.requires_grad and not sharded:
                parameter.register_post_accumulate_grad_hook(self._hook(place))
        first = self._watched[:_FIRST]
        self._always = min(range(len(first)), key=lambda at: first[at].size, default=0)

    def _place(self, parameter: Any) -> int | None:
        """Its position; an id comes again when a parameter is gone."""
        place = self._known.get(id(parameter))
        known = place is not None and self._watched[place].parameter() is parameter
        return place if known else None

    def _hook(self, place: int) -> Callable[[Any], None]:
        def arrived(parameter: Any) -> None:
            if self._due(place):
                self._guard(self._look, place, parameter.grad)

        return arrived

    def reducing(self, parameters: Sequence[Any], gradients: Sequence[Any]) -> None:
        """FSDP is about to reduce and cut `gradients`, those of whole parameters."""
        for parameter, gradient in zip(parameters, gradients, strict=False):
            place = self._place(parameter)
            if place is not None and self._due(place):
                self._guard(self._look, place, gradient)

    def _due(self, place: int) -> bool:
        return place == self._always or (place ^ self._turn) & self._mask == 0

    def _look(self, place: int, gradient: Any) -> None:
        torch = sys.modules["torch"]
        if gradient is None or gradient.layout is not torch.strided or gradient.is_meta:
            return
        began = time.thread_time()
        with Unseen():
            gradient = local(gradient)
            narrow = gradient.dtype in (torch.float16, torch.bfloat16)
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float32 if narrow else None)
            if gradient.is_cpu:
                self._saw(place, float(norm), gradient)
            else:
                self._pending.append((place, norm.float()))
        self._cost += time.thread_time() - began

    def _saw(self, place: int, norm: float, gradient: Any = None) -> None:
        """`gradient` is None when it is gone by now."""
        watched = self._watched[place]
        if norm - norm != 0.0:  # NaN or infinite; the norm of large numbers is infinite as well
            torch = sys.modules["torch"]
            if gradient is None or not bool(torch.isfinite(gradient).all()):
                if not self._bad:
                    self._bad_step = self._step()
                self._bad.append(place)
                self._mask = 0
                if len(self._bad) == 1 and gradient is not None:
                    self._say(settled=False)
                return
        elif watched.looks >= _LEAST_HISTORY and norm > _OUTLIER * watched.most > 0:
            self._outlier(watched, norm)
        watched.looks += 1
        watched.most = max(watched.most, norm if norm - norm == 0.0 else 0.0)

    def _outlier(self, watched: _Watched, norm: float) -> None:
        self._outliers += 1
        if self._outliers <= _MOST_TOLD:
            self._tell(
                check="norm", subject=watched.name, looks=watched.looks,
                shows=f"norm {norm:.3g} before the reduction, {watched.most:.3g} at most until now",
            )  # fmt: skip

    def stepping(self) -> None:
        """An optimizer is about to use what has been reduced."""
        if self._pending:
            torch = sys.modules["torch"]
            norms = torch.stack([norm for _, norm in self._pending])
            host = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
            host.copy_(norms, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._arriving.append((arrived, host, [place for place, _ in self._pending]))
            self._pending = []

    def stepped(self) -> None:
        """The optimizer has: what was not finite is in the parameters now, or was kept out."""
        while self._arriving and self._arriving[0][0].query():
            _, host, places = self._arriving.pop(0)
            for place, norm in zip(places, host.tolist(), strict=True):
                self._saw(place, norm)
        if not self._bad:
            self._clean_ns = time.time_ns()
        elif self._ruined():
            self._say(settled=True)
        self._bad = []
        self._pace()

    def _ruined(self) -> bool:
        """Whether numbers that are not finite went into a parameter. A shard is not the whole of
        it: what is not seen in this one is in another's."""
        torch = sys.modules["torch"]
        with Unseen():
            return any(
                watched.sharded or not bool(torch.isfinite(local(parameter)).all())
                for watched in (self._watched[place] for place in self._bad)
                if (parameter := watched.parameter()) is not None
            )

    def _say(self, *, settled: bool) -> None:
        self._told += 1
        if self._told > _MOST_TOLD:
            return
        names = [self._watched[place].name for place in dict.fromkeys(self._bad)]
        self._tell(
            check="gradient", subject=names[0], settled=settled, clean_ns=self._clean_ns,
            step=self._bad_step, count=self._turn,
            tensors=tuple(names[:_MOST_NAMED]), differ=len(names), total=len(self._watched),
            looks=self._watched[self._bad[0]].looks + 1,
        )  # fmt: skip

    def _pace(self) -> None:
        """As many parameters at a step as cost no more than the share."""
        now = self._clock()
        allowed = self._share * (now - self._began)
        stride = self._mask + 1
        if self._cost > allowed and stride < min(_MOST_STRIDE, _ROUNDS * len(self._watched)):
            stride *= 2
        elif self._cost * 4 < allowed and stride > 1:
            stride //= 2
        self._mask = stride - 1
        self._turn += 1
        self._began, self._cost = now, 0.0


def watch_fsdp(module: Any, find: Callable[[], LocalGradients | None]) -> None:
    """Hook for the module of FSDP2 that calls `foreach_reduce`."""
    original = module.foreach_reduce

    def foreach_reduce(parameters: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        watching = find()
        if watching is not None:
            watching.reducing([each.sharded_param for each in parameters], gradients)
        return original(parameters, gradients, *args, **kwargs)

    module.foreach_reduce = foreach_reduce
