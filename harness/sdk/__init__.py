"""What a training script may tell Harness, all of it optional.

Outside of `harness run` every function does nothing, and none raises on account of Harness.
`Checkpointer` works anywhere; it alone needs torch, which is imported with it.
"""

from typing import TYPE_CHECKING, Any

from harness.sdk.progress import (
    checkpoint_failed,
    checkpoint_loaded,
    checkpoint_saved,
    phase,
    progress,
    should_save,
    should_stop,
)

if TYPE_CHECKING:
    from harness.sdk.checkpoint.checkpointer import Checkpointer

__all__ = [
    "Checkpointer",
    "checkpoint_failed",
    "checkpoint_loaded",
    "checkpoint_saved",
    "phase",
    "progress",
    "should_save",
    "should_stop",
]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from harness.sdk.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
