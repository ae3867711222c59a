"""How long the main thread stands in collectives: the communication that nothing hides.

Counts what Python waits for: fully_shard, pipelines, tensor and context parallel, our own
collectives. DistributedDataParallel waits in C++ and is not seen, and on a GPU a wait only orders
streams, so there it is a profiler's work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


@dataclass(slots=True)
class Waits:
    """Seconds since `counting` began."""

    seconds: float = 0.0
    _depth: int = 0

    def _timed(self, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - began

        return timed

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Begin at 0 and count until the end of the block."""
        self.seconds = 0.0
        wait, tensor = dist.Work.wait, funcol.wait_tensor
        dist.Work.wait = self._timed(wait)  # type: ignore[method-assign]
        funcol.wait_tensor = self._timed(tensor)
        try:
            yield
        finally:
            dist.Work.wait = wait  # type: ignore[method-assign]
            funcol.wait_tensor = tensor
