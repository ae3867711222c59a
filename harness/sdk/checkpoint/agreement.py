"""What the ranks of a training settle among themselves, always from the main thread.

A Gloo group of its own keeps this apart from the training's groups and off the GPU. Nothing here is
called from the thread that writes: a rank that waits for a disk shall not look like a rank that
waits for another.
"""

import os
import weakref
from typing import Any

import torch
import torch.distributed as dist

from harness.errors import UsageError


def _world() -> dist.ProcessGroup | None:
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


class Agreement:
    """The ranks of this training: those of the default process group, or this process alone."""

    def __init__(self) -> None:
        """Makes the group, on all ranks. Raises UsageError without a group to follow."""
        world = _world()
        self._alone = world is None
        if world is None:
            self.rank, self.size = 0, 1
            if int(os.environ.get("WORLD_SIZE", "1") or "1") > 1:
                raise UsageError(
                    f"Checkpointer: WORLD_SIZE is {os.environ['WORLD_SIZE']}, but there is no "
                    "process group",
                    help="call torch.distributed.init_process_group before load() and save()",
                )
            return
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Weak: torch can deadlock when the last one to hold a destroyed group is not torch itself.
        self._world = weakref.ref(world)
        self._own = weakref.ref(dist.new_group(backend="gloo", group_desc="checkpoint"))

    def current(self) -> bool:
        """Whether the default process group is still the one this was made for."""
        return _world() is (None if self._alone else self._world())

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return self._own()

    def from_all(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of ranks, on every rank."""
        if self._alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        if self._alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def at_first(self, value: Any) -> list[Any]:
        """The values of all ranks on rank 0; an empty list on the others."""
        if self._alone:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def handed_out(self, values: list[Any]) -> Any:
        """The value that rank 0 has for this rank; the other ranks' lists do not matter."""
        if self._alone:
            return values[0]
        box: list[Any] = [None]
        dist.scatter_object_list(box, values if self.rank == 0 else None, src=0, group=self._group)
        return box[0]

    def summed(self, numbers: list[int]) -> list[int]:
        """Sums over all ranks, each modulo 2^64; all lists are equally long."""
        if self._alone:
            return [number % (1 << 64) for number in numbers]
        signed = [number - (1 << 64) if number >> 63 else number for number in numbers]
        tensor = torch.tensor(signed, dtype=torch.int64)
        dist.all_reduce(tensor, group=self._group)
        return [int(number) % (1 << 64) for number in tensor.tolist()]
