"""Digests beside the training on a GPU: on a stream of their own, read when they are there.

Nothing here waits for the device. `start` queues the reading behind what the training has queued,
`guard` has the training's stream wait for it before it writes to the tensors, and `take` hands out
what has arrived, as a rule one step later.
"""

from dataclasses import dataclass

import torch

from harness.digest.layout import WIDTH
from harness.digest.mix import MASK
from harness.digest.plan import Plan

_SLOTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The digests of one step. Tensors are in memory of the host and valid until three steps on."""

    step: int
    vector: torch.Tensor
    columns: torch.Tensor | None
    digests: list[int]
    fold: int


@dataclass(slots=True, kw_only=True)
class _Slot:
    vector: torch.Tensor
    columns: torch.Tensor
    folded: torch.Tensor
    """A digest for each tensor, and last that of all."""
    arrived: torch.Event
    step: int = -1
    with_columns: bool = False


class Beside:
    """Takes the digests of one plan, which serves nobody else then; for one thread at a time.

    On a CPU everything has happened when `start` returns.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._module = torch.get_device_module(plan.device)
        on_gpu = {} if plan.device.type == "cpu" else {"device": plan.device}
        self._stream = self._module.Stream(**on_gpu)
        self._free = [self._slot() for _ in range(_SLOTS)]
        self._flying: list[_Slot] = []  # oldest first: they arrive in this order

    def _slot(self) -> _Slot:
        def host(count: int) -> torch.Tensor:
            pinned = self.plan.device.type != "cpu"
            return torch.zeros(count, dtype=torch.int64, device="cpu", pin_memory=pinned)

        return _Slot(
            vector=host(self.plan.layout.buckets),
            columns=host(WIDTH),
            folded=host(len(self.plan.layout.shapes) + 1),
            arrived=self._module.Event(),
        )

    def start(self, step: int, *, columns: bool = False) -> bool:
        """Queue the digests of the tensors as they are at this point of the current stream.

        False, and nothing queued, while three earlier ones have not arrived or been taken, or
        while a graph is captured: the step goes unwatched rather than waited for.
        """
        if not self._free or self._capturing():
            return False
        slot = self._free.pop()
        slot.step, slot.with_columns = step, columns
        self._stream.wait_stream(self._module.current_stream(self.plan.device))
        with torch.inference_mode(False), torch.no_grad(), self._module.stream(self._stream):
            if columns:
                vector, sums = self.plan.rows_and_columns()
                slot.columns.copy_(sums, non_blocking=True)
            else:
                vector = self.plan.rows()
            folding = self.plan.folding(vector)
            digests = folding.digests(vector)
            slot.folded[:-1].copy_(digests, non_blocking=True)
            slot.folded[-1].copy_(folding.fold(digests), non_blocking=True)
            slot.vector.copy_(vector, non_blocking=True)
            slot.arrived.record(self._stream)
        self._flying.append(slot)
        return True

    def _capturing(self) -> bool:
        return self.plan.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def guard(self) -> None:
        """What is queued on the current stream from now on happens after the digests have read.

        To be called before the tensors are written in place or freed, or this object is dropped.
        """
        self._module.current_stream(self.plan.device).wait_stream(self._stream)

    def take(self) -> Taken | None:
        """The oldest digests that have arrived and were not taken; None where there are none yet.

        Its memory is used again by the third `start` after this.
        """
        if not self._flying or not self._flying[0].arrived.query():
            return None
        slot = self._flying.pop(0)
        self._free.insert(0, slot)
        *digests, fold = slot.folded.tolist()
        return Taken(
            step=slot.step,
            vector=slot.vector,
            columns=slot.columns if slot.with_columns else None,
            digests=[number & MASK for number in digests],
            fold=fold & MASK,
        )
