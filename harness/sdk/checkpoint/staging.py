"""The snapshot that is written while training goes on: copies of what this rank writes."""

import io
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from harness.sdk.checkpoint.plan import Planner
from harness.sdk.checkpoint.things import Contents


class Snapshot(Planner):
    """Hands the staged copies to DCP's writer. Its memory is used again by the next save, so that
    only the first one pays for fresh pages; it is as large as what this rank writes."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: dict[MetadataIndex, torch.Tensor] = {}
        self._rest: dict[str, bytes] = {}

    def take(self, content: dict[str, Any], mine: SavePlan) -> None:
        """Copy what `mine` names out of `content`. When it returns the copies are complete."""
        self.set_up_planner(content)
        before, self._tensors, self._rest = self._tensors, {}, {}
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item in mine.items:
            live = self.lookup_object(item.index)
            if item.type == WriteItemType.BYTE_IO:
                self._rest[item.index.fqn] = live
                continue
            copy = before.pop(item.index, None)
            if copy is None or copy.shape != live.shape or copy.dtype != live.dtype:
                copy = torch.empty(live.shape, dtype=live.dtype, pin_memory=live.is_cuda)
            pairs.append((live, copy))
            self._tensors[item.index] = copy
        copy_all(pairs)
        self.state_dict = {}  # lets go of the live tensors

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(self._rest[write_item.index.fqn])
        return self._tensors[write_item.index]

    def forget(self) -> None:
        """Give the memory back."""
        self._tensors, self._rest = {}, {}


def copy_all(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy each live tensor into its copy; they are complete when this returns."""
    on_gpu = False
    for live, copy in pairs:
        copy.copy_(live.detach(), non_blocking=live.is_cuda)
        on_gpu = on_gpu or live.is_cuda
    if on_gpu:
        torch.cuda.synchronize()


def rest_digests(contents: Contents) -> dict[str, str]:
    """A digest of what this rank keeps for itself, by thing: 64 bits of SHA-256 in hex."""
    import hashlib

    return {thing: hashlib.sha256(kept).hexdigest()[:16] for thing, kept in contents.rest.items()}
