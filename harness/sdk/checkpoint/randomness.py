"""The states of this process's random number generators: Python's, numpy's where it is in use,
torch's, and those of the GPUs it has used."""

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """All states, to be handed to `restore`. Draws nothing from any of them."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Only the device in use: asking for the others would start CUDA on them.
        states["cuda"] = torch.cuda.get_rng_state(torch.cuda.current_device())
    return states


def restore(states: dict[str, Any]) -> None:
    """Undo of `capture`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy  # it was in use when this was saved

        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"], torch.cuda.current_device())
