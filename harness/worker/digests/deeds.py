"""What the program itself reduces by hand: a tensor that is summed over ranks tells what they are
meant to have in common."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.worker.digests.books import address

_MOST = 4096
_LEAST_ELEMENTS = 2
REDUCING = frozenset({"allreduce", "allreduce_coalesced"})
"""Methods of ProcessGroup that leave the same sum on all members."""


class Deeds:
    """Sums over ranks since `clear`, by the address of the tensor and by its shape."""

    def __init__(self) -> None:
        self.addresses: dict[int, tuple[int, ...]] = {}
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
            if len(self.addresses) >= _MOST:
                self.clear()
            self.addresses[address(tensor)] = members
            self.shapes[tuple(tensor.shape)] = members
            self.sizes[size] = members

    def of_gradients(self, gradients: Sequence[Any]) -> list[tuple[int, ...]]:
        """Over which ranks each was summed, alone or all of them in one flat tensor."""
        total = sum(int(gradient.numel()) for gradient in gradients)
        flat = self.sizes.get(total, ()) if len(gradients) > 1 else ()
        return [self.addresses.get(address(gradient), flat) for gradient in gradients]

    def clear(self) -> None:
        self.addresses.clear()

    @property
    def any(self) -> bool:
        return bool(self.addresses)


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
