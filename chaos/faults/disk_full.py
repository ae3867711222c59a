"""A disk that has no room for one checkpoint: the kernel's own ENOSPC, from /dev/full."""

import builtins
import os
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind
from harness.checkpointnames import is_data

_FULL = "/dev/full"


def do(inside: Inside) -> None:
    import torch

    opened, save = builtins.open, torch.save

    def due(path: Any, mode: str) -> bool:
        named = isinstance(path, str | os.PathLike) and is_data(os.fspath(path).split(".tmp")[0])
        return named and "r" not in mode and inside.due()

    def back() -> None:
        inside.strike()
        builtins.open, torch.save = opened, save

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if due(file, mode):
            back()
            return opened(_FULL, mode.replace("x", "w"), *args, **kwargs)
        return opened(file, mode, *args, **kwargs)

    def save_(thing: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if due(f, "wb"):
            back()
            with opened(_FULL, "wb") as full:
                return save(thing, full, *args, **kwargs)
        return save(thing, f, *args, **kwargs)

    builtins.open, torch.save = open_, save_  # type: ignore[assignment]


KIND = Kind(
    name="disk_full",
    area="checkpoint",
    summary="let the next checkpoint find a full disk",
    place="worker",
    do=do,
    verdicts=("checkpoint_save_failed", "exception"),
    actions=("report", "restart"),
    needs="checkpoints",
)
