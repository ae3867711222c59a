"""What the program itself reduces by hand: a tensor that is summed over ranks tells what they are
meant to have in common."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.worker.digests.books import address, local

_MOST = 4096
_LEAST_ELEMENTS = 2
REDUCING = frozenset({"allreduce", "allreduce_coalesced"})
"""Methods of ProcessGroup that leave the same sum on all members."""


class Deeds:
    """Sums over ranks since `clear`, by the tensor, its shape and its size."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], tuple[Any, tuple[int, ...]]] = {}
        """By storage and address: a weak reference to the storage, for an address comes again when
        its tensor is gone, and the members."""
        self.shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.sizes: dict[int, tuple[int, ...]] = {}

    def saw(self, members: tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A reduction over `members` with the arguments of ProcessGroup's method."""
        if len(members) < 2 or not args or not _sums(args, kwargs):
            return
        tensors = args[0] if isinstance(args[0], list | tuple) else [args[0]]
        for tensor in tensors[:_MOST]:
            size = int(tensor.numel())
            if size < _LEAST_ELEMENTS or not tensor.is_floating_point():
                continue
            if len(self._tensors) >= _MOST:
                self.clear()
            with contextlib.suppress(Exception):  # a tensor of a kind that has no storage
                self._tensors[_key(tensor)] = _weak(tensor), members
            self.shapes[tuple(tensor.shape)] = members
            self.sizes[size] = members

    def of_gradients(self, gradients: Sequence[Any]) -> list[tuple[int, ...]]:
        """Over which ranks each was summed, alone or all of them in one flat tensor."""
        total = sum(int(gradient.numel()) for gradient in gradients)
        flat = self.sizes.get(total, ()) if len(gradients) > 1 else ()
        return [self.of(gradient) or flat for gradient in gradients]

    def of(self, tensor: Any) -> tuple[int, ...]:
        """Over which ranks the tensor itself was summed; empty for none."""
        if not self._tensors:
            return ()
        with contextlib.suppress(Exception):
            storage, members = self._tensors.get(_key(tensor), (None, ()))
            return members if storage is not None and not storage.expired() else ()
        return ()

    def clear(self) -> None:
        self._tensors.clear()

    @property
    def any(self) -> bool:
        return bool(self._tensors)


def _key(tensor: Any) -> tuple[int, int]:
    return local(tensor).untyped_storage()._cdata, address(tensor)


def _weak(tensor: Any) -> Any:
    """While this is kept, no other storage has the number that `_key` gives."""
    reductions = sys.modules["torch.multiprocessing.reductions"]
    return reductions.StorageWeakRef(local(tensor).untyped_storage())


def _sums(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operation is a sum or a mean."""
    operations = sys.modules["torch._C._distributed_c10d"].ReduceOp
    options = args[1] if len(args) > 1 else kwargs.get("opts", kwargs.get("op"))
    operation = getattr(options, "reduceOp", options)
    if operation is None:
        return True
    with contextlib.suppress(Exception):
        return any(operation == known for known in (operations.SUM, operations.AVG))
    return False
