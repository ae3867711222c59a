"""What the program itself reduces by hand: a tensor that is summed over ranks tells what they are
meant to have in common."""

import contextlib
import itertools
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

    def of_gradients(self, gradients: Sequence[Any]) -> list[tuple[tuple[int, ...], bool]]:
        """Over which ranks each was summed, and whether as a part of a flat tensor: of all of
        them, or of one of some that hold all that follow one another, to the last."""
        found = [(self.of(gradient), False) for gradient in gradients]
        flat = [at for at, (members, _) in enumerate(found) if not members]
        sizes = [int(gradients[at].numel()) for at in flat]
        for at, members in zip(flat, self._flat(sizes), strict=True):
            found[at] = members, bool(members)
        return found

    def _flat(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Over which ranks runs of `sizes` were summed that leave none of them out; else nothing
        is known of any. The order may be that of the parameters or the other way round."""
        for ordered, turn in ((sizes, 1), (sizes[::-1], -1)):
            cover = self._cover(ordered)
            if cover is not None:
                return cover[::turn]
        return [()] * len(sizes)

    def _cover(self, sizes: Sequence[int]) -> list[tuple[int, ...]] | None:
        """The longest run first: what fits by chance is short."""
        found: list[tuple[int, ...]] = []
        while len(found) < len(sizes):
            rest = list(itertools.accumulate(sizes[len(found) :]))
            ends = [end for end, total in enumerate(rest, 1) if end > 1 and total in self.sizes]
            if not ends:
                return None
            found += [self.sizes[rest[ends[-1] - 1]]] * ends[-1]
        return found

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
