"""What the ranks that cut a block between them pass to each other while it is computed.

A rank that computes such a block again has no such partners, and calls no collective: it is given
what its predecessor received, and what it would have passed on is compared with what that one had.
So a wrong partial sum is seen on the rank that made it, not on all that got it.

Seen are the functional collectives, which DTensor uses. What anything else would send in a block
that is computed again is held up before it is sent.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.worker.audits.fingerprints import Fingerprints
from harness.worker.digests.books import local

_NAMES = (
    "all_reduce", "all_gather_single", "all_gather_tensor", "reduce_scatter_single",
    "reduce_scatter_tensor", "all_to_all_single", "broadcast",
)  # fmt: skip
"""Of torch.distributed._functional_collectives, in any version."""
_SPACES = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_MASK = 0xFFFFFFFFFFFFFFFF


class Talks(Exception):
    """A block that is computed again was about to send something."""


@dataclass(frozen=True, slots=True)
class Passed:
    """One collective: what it is, a digest of what this rank gave, what it got."""

    what: str
    given: int
    got: Any


class Passing:
    """Of this rank; off, or taking down, or giving back."""

    def __init__(self, keep: Callable[[Passed], None]) -> None:
        """`keep` takes each collective that is taken down."""
        self._keep = keep
        self._fingerprints = Fingerprints()
        self._inside = False
        self._script: list[Passed] | None = None
        self._at = 0
        self.taking = False
        self.count = 0
        """Collectives that were taken down."""
        self.wrong: list[str] = []
        """Where something else was given than then."""

    @property
    def off(self) -> bool:
        return self._inside or not (self.taking or self._script is not None)

    def giving(self, script: list[Passed]) -> None:
        """From now on give back what is in `script`."""
        self._script, self._at, self.wrong = script, 0, []

    def done(self) -> None:
        self._script = None

    def pass_on(self, name: str, call: Callable[[], Any], given: Any, how: Sequence[Any]) -> Any:
        """`call` does it; `how` are its other arguments."""
        what = f"{name} {tuple(given.shape)} {given.dtype} {[a for a in how if _simple(a)]}"
        digest = int(self._fingerprints.of(given)) & _MASK
        if self._script is not None:
            return self._played(what, digest, given.device)
        self._inside = True
        try:
            got = call()
        finally:
            self._inside = False
        got = got.wait() if hasattr(got, "wait") else got
        self.count += 1
        self._keep(Passed(what, digest, local(got).detach().to("cpu", copy=True)))
        return got

    def _played(self, what: str, digest: int, device: Any) -> Any:
        assert self._script is not None
        # Some that were taken down belong to another block, or to a gradient that nobody asks for.
        for at in range(self._at, len(self._script)):
            passed = self._script[at]
            if passed.what == what:
                self._at = at + 1
                if passed.given != digest:
                    self.wrong.append(f"what it gives to {what.partition(' ')[0]} {at + 1}")
                return passed.got.to(device, copy=True)
        raise Talks(f"nobody has taken down its {what}")


def _simple(value: Any) -> bool:
    return isinstance(value, (int, str))


def watch(module: Any, find: Callable[[], Passing | None]) -> None:
    """Hook for torch.distributed._functional_collectives."""
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _wrapped(name, getattr(module, name), find))


def _wrapped(
    name: str, original: Callable[..., Any], find: Callable[[], Passing | None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(given: Any, *args: Any, **kwargs: Any) -> Any:
        passing = None if _compiling() else find()
        call = functools.partial(original, given, *args, **kwargs)
        if passing is None or passing.off:
            return call()
        return passing.pass_on(name, call, given, [*args, *kwargs.values()])

    return collective


def _compiling() -> bool:
    return bool(sys.modules["torch"].compiler.is_compiling())


def silent() -> Any:
    """A context in which every operation that would talk to other ranks raises Talks."""
    modes = sys.modules["torch.utils._python_dispatch"]

    class Silent(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or the compiler is imported: seconds, and nothing here is compiled

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(kind.__name__ == "DTensor" for kind in types):
                return NotImplemented  # it is taken apart, and its parts come here again
            if func.namespace in _SPACES and "wait_tensor" not in func.__name__:
                raise Talks(f"it calls {func.name()}")
            return func(*args, **(kwargs or {}))

    return Silent()
