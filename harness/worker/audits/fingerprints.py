"""A 64-bit number of a tensor's bits, for tensors that come one at a time."""

import sys
from collections.abc import Iterable
from typing import Any

from harness.worker.digests.books import local
from harness.worker.unseen import Unseen

_MOST_PLANS = 512


class Fingerprints:
    """Keeps what it has planned for tensors of one form."""

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}

    def of(self, tensor: Any) -> Any:
        """int64 without dimensions, on the tensor's device. ValueError where there are no bytes."""
        from harness.digest.plan import Plan

        with Unseen():
            tensor = local(tensor).detach()
            key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            plan = self._plans.get(key)
            if plan is None or not plan.rebind([tensor]):
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                plan = self._plans[key] = Plan([("", tensor)])
            vector = plan.rows()
            digest = plan.folding(vector).digests(vector)[0].clone()
            plan.release()
            return digest


def tensors_in(value: Any) -> list[Any]:
    """The tensors of a structure, in its order."""
    torch = sys.modules["torch"]
    leaves: Iterable[Any] = sys.modules["torch.utils._pytree"].tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.numel()]
