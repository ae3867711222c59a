"""The checks of this process's own numbers: told of optimizer steps, gradients,
recomputations and forwards of wrapped models.

No method raises, none calls a collective, and all are silent in forked children.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.worker.audits.exchange import path_of
from harness.worker.audits.gradients import LocalGradients
from harness.worker.audits.names import named_parameters
from harness.worker.audits.neighbours import local_ranks
from harness.worker.audits.recompute import Recomputes
from harness.worker.audits.replay import Replays
from harness.worker.audits.updates import Updates, has_closure
from harness.worker.digests.pace import Pace

Say = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What an auditor needs of its rank. `operations` counts the collectives begun so far."""

    say: Say
    step: Callable[[], int]
    operations: Callable[[], int]
    rank: int
    world_size: int
    attempt: int
    folder: str
    """Of this node's ranks, for what they leave each other."""


class Auditor:
    """`share` is what each kind of check may take of the rank's time; `replays` the least number of
    steps between two micro-batches that are computed again, 0: none are."""

    def __init__(self, means: Means, *, share: float, replays: int) -> None:
        self._means = means
        self._pid = os.getpid()
        self._broken: set[str] = set()
        self._known: tuple[int, ...] = ()
        self.gradients = LocalGradients(self._tell, self.guard, means.step, share)
        self.recomputes = Recomputes(self._tell, self.guard, means.step, means.operations, share)
        self.updates = Updates(self._tell, means.step, lambda: Pace(1, share, means.world_size))
        self.replays = Replays(
            self._tell,
            self.guard,
            means.operations,
            rank=means.rank,
            local=local_ranks(means.rank),
            path=lambda rank, number: path_of(means.folder, means.attempt, rank, number),
            send=lambda number, reader: means.say("BatchLeft", number=number, reader=reader),
            pace=Pace(replays, share, means.world_size) if replays > 0 else None,
        )

    @property
    def active(self) -> bool:
        return os.getpid() == self._pid

    def stepping(self, optimizer: Any, closure: bool = False) -> None:
        """An optimizer's step is about to begin."""
        self.guard(self._attach, optimizer)
        self.guard(self.gradients.stepping)
        self.guard(self.replays.stepping)
        self.guard(self.updates.stepping, optimizer, closure)

    def stepped(self, optimizer: Any) -> None:
        self.guard(self.updates.stepped, optimizer)
        self.guard(self.gradients.stepped)
        self.guard(self.recomputes.stepped)
        self.guard(self.replays.stepped)

    def _attach(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        ids = tuple([id(parameter) for parameter in parameters])
        if ids != self._known:
            self._known = ids
            self.gradients.attach(named_parameters(parameters))

    def _tell(self, **doubt: Any) -> None:
        known = {"step": self._means.step(), "at_ns": time.time_ns(), **doubt}
        self._means.say("DoubtRaised", doubt=known)

    def guard(self, check: Callable[..., None], *arguments: Any) -> None:
        if not self.active or (self._broken and _kind(check) in self._broken):
            return
        try:
            check(*arguments)
        except Exception as error:  # the user's program goes on without this check
            name = _kind(check)
            self._broken.add(name)
            self._means.say("HookFailed", module="audits", why=f"{name}: {error!r}")


def _kind(check: Callable[..., None]) -> str:
    """Of which class it is a method."""
    return getattr(check, "__qualname__", "").partition(".")[0]


Find = Callable[[], Auditor | None]
"""Gives the auditor of this process."""


def watch_steps(module: Any, find: Find) -> None:
    """Hooks for torch.optim.optimizer."""

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        auditor = find()
        if auditor is not None:
            auditor.stepping(optimizer, has_closure(args, kwargs))

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        auditor = find()
        if auditor is not None:
            auditor.stepped(optimizer)

    module.register_optimizer_step_pre_hook(stepping)
    module.register_optimizer_step_post_hook(stepped)
