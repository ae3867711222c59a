"""The digests of this process: told of optimizer steps and of calls of collectives.

No method raises, none calls a collective, and all are silent in forked children.
"""

import _thread
import os
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from harness.worker.digestlog import DigestWriter
from harness.worker.digests.books import Teller
from harness.worker.digests.deeds import REDUCING, Deeds
from harness.worker.digests.optimizers import Optimizers
from harness.worker.digests.pace import Pace
from harness.worker.digests.program import Program


class Witness:
    """`every` is the least number of steps between two looks, `share` what they may take of the
    rank's time; the first `closely` steps, or calls where there is no optimizer, are all looked
    at, and the whole state, and the words of `reread` are told; names like those of `exclude` are
    left alone. `step` tells what the rank counts, `progress` what it has called and come to,
    `failed` takes why looking had to be given up."""

    def __init__(
        self,
        log: DigestWriter,
        *,
        every: int,
        share: float,
        closely: int = 0,
        reread: str = "",
        exclude: Sequence[str] = (),
        world_size: int,
        step: Callable[[], int],
        progress: Callable[[], int],
        is_framework: Callable[[CodeType], bool],
        failed: Callable[[str], object],
    ) -> None:
        def pace() -> Pace:
            return Pace(every, share, world_size)

        self._failed = failed
        self._pid = os.getpid()
        self._thread = _thread.get_ident()
        self._busy = False
        self._given_up = False
        self._deeds = Deeds()
        teller = Teller(log, step, progress, exclude)
        self._close = teller.close
        self._optimizers = Optimizers(teller, pace, self._deeds, closely, reread)
        self._program = Program(teller, pace, self._deeds, is_framework, closely)

    def ask(self, question: bytes) -> None:
        """What the agent wants to know of one tensor; from any thread."""
        self._close.ask(question)

    def stepping(self, optimizer: Any) -> None:
        """An optimizer's step is about to begin."""
        self._quietly(self._optimizers.before, optimizer)

    def stepped(self, optimizer: Any) -> None:
        self._quietly(self._optimizers.after, optimizer)

    def calling(
        self,
        method: str,
        members: tuple[int, ...],
        frame: FrameType | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """A method of ProcessGroup is about to be called for the user's line at `frame`."""
        if self._given_up or (self._optimizers.any and not self._optimizers.learning):
            return
        self._quietly(self._calling, method, members, frame, args, kwargs)

    def _calling(
        self,
        method: str,
        members: tuple[int, ...],
        frame: FrameType | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        if not self._optimizers.any:
            self._program.look(frame)
        if method in REDUCING:
            self._deeds.saw(members, args, kwargs)

    def _quietly(self, look: Callable[..., None], *arguments: Any) -> None:
        if self._given_up or self._busy or os.getpid() != self._pid:
            return
        if _thread.get_ident() != self._thread:
            return  # gradients are reduced in autograd's threads too: there is no program to see
        self._busy = True
        try:
            look(*arguments)
        except Exception as error:  # the user's program goes on without digests
            self._given_up = True
            self._failed(repr(error))
        finally:
            self._busy = False


Find = Callable[[], Witness | None]
"""Gives the witness of this process."""


def watch_steps(module: Any, find: Find) -> None:
    """Hooks for torch.optim.optimizer."""

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        witness = find()
        if witness is not None:
            witness.stepping(optimizer)

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        witness = find()
        if witness is not None:
            witness.stepped(optimizer)

    module.register_optimizer_step_pre_hook(stepping)
    module.register_optimizer_step_post_hook(stepped)
