"""Where the checks are hooked into torch."""

import sys
from collections.abc import Callable
from typing import Any

from harness.worker.audits import gradients, passing, recompute, replay, units
from harness.worker.audits.auditor import Find

Hook = Callable[[Any], None]


def hooks(find: Find) -> dict[str, Hook]:
    """By the module of torch that they are for."""

    def gradients_of() -> gradients.LocalGradients | None:
        auditor = find()
        return None if auditor is None else auditor.gradients

    def recomputes_of() -> recompute.Recomputes | None:
        auditor = find()
        return None if auditor is None else auditor.recomputes

    def replays_of() -> replay.Replays | None:
        auditor = find()
        return None if auditor is None else auditor.replays

    def passing_of() -> passing.Passing | None:
        auditor = find()
        return None if auditor is None else auditor.replays.passing

    def guard(check: Callable[..., None], *arguments: Any) -> None:
        auditor = find()
        if auditor is not None:
            auditor.guard(check, *arguments)

    return {
        "torch.distributed._functional_collectives": lambda module: passing.watch(
            module, passing_of
        ),
        "torch.distributed.fsdp._fully_shard._fsdp_state": lambda module: units.watch_fsdp(
            module, replays_of, guard
        ),
        "torch.utils.checkpoint": lambda module: recompute.watch_checkpoints(module, recomputes_of),
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": _copied,
        "torch.distributed.fsdp._fully_shard._fsdp_param_group": lambda module: (
            gradients.watch_fsdp(module, gradients_of)
        ),
    }


def watch_ddp(module: Any, find: Find) -> None:
    """Hook for torch.nn.parallel.distributed."""

    def guard(check: Callable[..., None], *arguments: Any) -> None:
        auditor = find()
        if auditor is not None:
            auditor.guard(check, *arguments)

    def replays_of() -> replay.Replays | None:
        auditor = find()
        return None if auditor is None else auditor.replays

    units.watch_ddp(module, replays_of, guard)


def _copied(module: Any) -> None:
    """It has copied the function's name, perhaps before that was wrapped."""
    module.torch_utils_checkpoint = sys.modules["torch.utils.checkpoint"].checkpoint
