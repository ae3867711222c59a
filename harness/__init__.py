"""Harness keeps distributed PyTorch training alive and tells the truth when it breaks.

Checkpoints that are complete or do not count, with or without `harness run`:

    ck = harness.Checkpointer("checkpoints", keep=3)
    start = ck.load(model=model, optimizer=optimizer)
    ck.save(step, model=model, optimizer=optimizer)

What a training script may say to it; all of it does nothing outside of `harness run`:

    import harness

    harness.progress(step, loss=loss.item(), tokens=tokens, total_steps=1000)
    with harness.phase("checkpoint"):
        ...
    harness.checkpoint_saved(step, path, seconds)
    harness.checkpoint_loaded(step, path)
    harness.checkpoint_failed(step, path, why)
    if harness.should_save(step):       # a checkpoint is asked for: save and go on
        ...
    if harness.should_stop(step):       # the run is preempted: save and leave
        ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.sdk import (
        Checkpointer,
        checkpoint_failed,
        checkpoint_loaded,
        checkpoint_saved,
        phase,
        progress,
        should_save,
        should_stop,
    )

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
    if name in __all__:
        from harness import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
