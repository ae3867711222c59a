"""Forward and backward of one step: micro-batches in turn, or a pipeline schedule."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from harness.trainer.config import V_SHAPED, Config
from harness.trainer.model import Transformer
from harness.trainer.moe import Mixture, mixtures
from harness.trainer.precision import Float8Linear, LossScale

Probe = Callable[[], None]
SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "looped-bfs": ScheduleLoopedBFS,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}


def stages_of(rank: int, ranks: int, stages: int, schedule: str) -> list[int]:
    """Numbers of the stages on this pipeline rank: every `ranks`-th, or down and up again."""
    if schedule in V_SHAPED:
        return [rank, stages - 1 - rank]
    return list(range(rank, stages, ranks))


def stage_layers(stage: int, sizes: Sequence[int]) -> tuple[int, int]:
    """First and last (exclusive) block of a stage; `sizes` are the blocks of each."""
    first = sum(sizes[:stage])
    return first, first + sizes[stage]


def token_loss(logits: torch.Tensor, targets: torch.Tensor, tokens: int) -> torch.Tensor:
    """Cross entropy summed over these tokens, divided by the tokens of the global batch.

    Summing the result over micro-batches and data-parallel ranks gives the mean over all tokens,
    and summing its gradients that mean's gradient. logits (batch, seq, vocab), also split over the
    vocabulary; targets (batch, seq).
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / tokens


def _plain(loss: torch.Tensor) -> torch.Tensor:
    return loss.to_local().detach() if isinstance(loss, DTensor) else loss.detach()


@dataclass(kw_only=True)
class Runner:
    """Takes one step's inputs and targets, int64 (rows of this rank, seq), and leaves gradients
    behind, multiplied by `scale.value`.

    Calling it returns this rank's share of the mean loss over the `tokens` of the global batch, 0
    where another pipeline stage knows it; ranks of one tp group return the same share.
    """

    parts: list[Transformer]
    mesh: DeviceMesh
    config: Config
    tokens: int
    device: torch.device
    scale: LossScale
    ddp: DistributedDataParallel | None = None
    busy: float = 0.0
    """Seconds that this rank's stages computed in the last step, without waiting for others; 0
    without a pipeline."""

    def __post_init__(self) -> None:
        """Make what a step needs."""

    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, probe: Probe | None = None
    ) -> torch.Tensor:
        raise NotImplementedError

    @property
    def _averaged(self) -> int:
        """What DDP divides gradients by; all others sum them."""
        return self.ddp.process_group.size() if self.ddp is not None else 1

    def _weigh_balance(self) -> None:
        """Give the balance loss, which joins the gradients inside the model, what the loss of the
        tokens gets."""
        for mixture in mixtures(self.parts).values():
            mixture.loss_scale = self.scale.value * self._averaged / self.config.data.global_batch

    def _vocab_parallel(self) -> AbstractContextManager[None]:
        return loss_parallel() if self.mesh["tp"].size() > 1 else contextlib.nullcontext()

    def _scaled(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = token_loss(logits, targets, self.tokens)
        return loss if self.scale.value == 1 else loss * self.scale.value

    def _sum(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        kind = torch.float64 if self.config.memory.precision == "fp64" else torch.float32
        total = torch.zeros((), dtype=kind, device=self.device)
        for loss in losses:
            total += _plain(loss)
        return total / self.scale.value if self.scale.value != 1 else total


class Accumulate(Runner):
    """Micro-batches one after another. Gradients cross the mesh with the last, or (ZeRO-2, 3) with
    each. `probe` is called when those of the first have been reduced."""

    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, probe: Probe | None = None
    ) -> torch.Tensor:
        count, losses = self.config.parallel.micro_batches, []
        self._weigh_balance()
        pairs = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
        for i, (x, y) in enumerate(pairs):
            early = probe is not None and i == 0
            with self._reducing(i, count, early=early), self._vocab_parallel():
                loss = self._scaled((self.ddp or self.parts[0])(x), y)
                times = self._averaged
                torch.autograd.backward(loss * times if times > 1 else loss)
            losses.append(_plain(loss))
            if i == 0 and probe is not None:
                probe()
        return self._sum(losses)

    @contextlib.contextmanager
    def _reducing(self, number: int, count: int, *, early: bool) -> Iterator[None]:
        last = number == count - 1
        every = self.config.parallel.zero in ("2", "3")
        if self.ddp is not None:
            with contextlib.nullcontext() if last or early else self.ddp.no_sync():
                yield
            return
        for part in self.parts:
            assert isinstance(part, FSDPModule)
            part.set_is_last_backward(last)
            part.set_requires_gradient_sync(last or every or early)
        yield


class TimedStage(PipelineStage):
    """A stage that counts the seconds in which it computes."""

    seconds = 0.0
    begun = False

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        if not self.begun:
            # To learn the shapes, memory as it was found has gone through once.
            for module in self.submod.modules():
                if isinstance(module, Mixture | Float8Linear):
                    module.forget()
            self.begun = True
        with self._counted():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._counted():
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._counted():
            return super().backward_weight_one_chunk(*args, **kwargs)


class Pipelined(Runner):
    """A schedule over the pp axis; docs/trainer.md says which."""

    def __post_init__(self) -> None:
        pp, chosen = self.mesh["pp"], self.config.parallel
        count = pp.size() * len(self.parts)
        numbers = stages_of(pp.get_local_rank(), pp.size(), count, chosen.schedule)
        self._stages = [
            TimedStage(part, number, count, self.device, group=pp.get_group())
            for part, number in zip(self.parts, numbers, strict=True)
        ]
        self._first, self._last = 0 in numbers, count - 1 in numbers
        single = chosen.schedule in ("1f1b", "gpipe")
        self._schedule = SCHEDULES[chosen.schedule](
            self._stages[0] if single else self._stages,
            chosen.micro_batches,
            loss_fn=self._scaled,
            scale_grads=False,
        )

    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, probe: Probe | None = None
    ) -> torch.Tensor:
        assert probe is None
        losses: list[torch.Tensor] = []
        self._weigh_balance()
        for stage in self._stages:
            stage.seconds = 0.0
        with self._vocab_parallel():
            self._schedule.step(
                *((inputs,) if self._first else ()),
                target=targets if self._last else None,
                losses=losses if self._last else None,
                return_outputs=False,
            )
        self.busy = sum(stage.seconds for stage in self._stages)
        return self._sum(losses)
