"""Progress, phases and checkpoints, told to the guest of this process if there is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, SupportsFloat

from harness.checkpoints import attempt_name
from harness.worker.guest import current

Phase = Literal["init", "step", "checkpoint", "eval", "teardown"]


def progress(
    step: int,
    *,
    loss: SupportsFloat | None = None,
    tokens: int | None = None,
    total_steps: int | None = None,
) -> None:
    """Say that `step` optimizer steps are complete, counted over the whole training.

    Takes the place of the steps that Harness counts by itself from then on. `loss` is that of the
    last step (a number: a tensor on a GPU would wait for it), `tokens` all tokens consumed so far,
    `total_steps` the number of steps after which the training will be done. Costs microseconds.
    """
    guest = current()
    if guest is not None:
        guest.progress(
            int(step),
            None if loss is None else float(loss),
            None if tokens is None else int(tokens),
            None if total_steps is None else int(total_steps),
        )


def numbers_are_compared() -> bool:
    """Whether what this rank holds is compared with other ranks, which certifies checkpoints."""
    guest = current()
    return guest is not None and guest.witness is not None


def this_attempt() -> str:
    """The attempt that this process is of, as its agent writes it into what it holds for it; empty
    where there is none."""
    guest = current()
    if guest is None:
        return ""
    return attempt_name(guest.assignment.agent_pid, guest.assignment.attempt)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Be in a phase: init, step, checkpoint, eval or teardown; the one before returns after it.

    Work of another kind than training steps lasts as long as it lasts; told about it, Harness
    does not mistake it for a stall.
    """
    guest = current()
    if guest is None:
        yield
        return
    before = guest.enter(name)
    guest.link.say("PhaseChanged", phase=name)
    try:
        yield
    finally:
        guest.enter(before)
        guest.link.say("PhaseChanged", phase=before)


def should_stop(step: int) -> bool:
    """Whether training is to stop after `step`: the run is preempted.

    Ask once for each step, on every rank, with numbers that grow and are the same on all ranks.
    The answer is true on all ranks at the same step, without a collective; then save, say so
    (`checkpoint_saved`, or let `harness.Checkpointer` do both) and leave. Costs microseconds.
    """
    guest = current()
    return guest is not None and guest.should_stop(int(step))


def should_save(step: int) -> bool:
    """Whether to save after `step` and go on: a checkpoint is asked for (`harness ckpt save`).

    To be asked as `should_stop` is, and true on all ranks at the same step, once for each request.
    `harness.Checkpointer.maybe_save` asks by itself. Costs microseconds.
    """
    guest = current()
    return guest is not None and guest.should_save(int(step))


def checkpoint_saved(step: int, path: str | os.PathLike[str], seconds: float) -> None:
    """Say that this rank's part of the checkpoint of `step` at `path` is safe on disk.

    `seconds` is the time that training stood still for it. A checkpoint counts as a point to
    restart from once every rank has said so.
    """
    guest = current()
    if guest is not None:
        guest.link.say(
            "CheckpointSaved", step=int(step), path=os.fspath(path), seconds=float(seconds)
        )


def checkpoint_loaded(
    step: int, path: str | os.PathLike[str], seconds: float = 0.0, source: str = ""
) -> None:
    """Say that this rank goes on from the checkpoint of `step` at `path`.

    `seconds` is what the load took; `source` is disk, memory or neighbour, where it is known.
    """
    guest = current()
    if guest is not None:
        guest.link.say(
            "CheckpointLoaded",
            step=int(step),
            path=os.fspath(path),
            seconds=float(seconds),
            source=source,
        )


def checkpoint_refused(step: int, path: str | os.PathLike[str], why: str) -> None:
    """Say that the checkpoint of `step` is no longer what was saved there, in words: an older one
    is looked for."""
    guest = current()
    if guest is not None:
        name = os.path.basename(os.fspath(path))
        guest.link.say(
            "CheckpointRefused",
            step=int(step),
            path=os.fspath(path),
            why=f"{name} was passed over when it was to be loaded: {why}",
        )


def checkpoint_failed(step: int, path: str | os.PathLike[str], why: str) -> None:
    """Say that nothing was saved at `step`, in words; training goes on without it."""
    guest = current()
    if guest is not None:
        guest.link.say("CheckpointFailed", step=int(step), path=os.fspath(path), why=str(why))
