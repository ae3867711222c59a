"""What a training script may tell Harness, all of it optional.

Outside of `harness run` every function does nothing, and none raises on account of Harness.
"""

from harness.sdk.progress import (
    checkpoint_loaded,
    checkpoint_saved,
    phase,
    progress,
    should_stop,
)

__all__ = ["checkpoint_loaded", "checkpoint_saved", "phase", "progress", "should_stop"]
