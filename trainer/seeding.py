"""Every random number of a run: derived seeds, and the generators' states for a checkpoint."""

from __future__ import annotations

import hashlib
import json
import random

import torch


def derive(seed: int, *labels: object) -> int:
    """A 63-bit seed that depends on the run's seed and the labels only."""
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *labels: object) -> torch.Generator:
    """A CPU generator for the labels: the same numbers on every rank and device."""
    return torch.Generator().manual_seed(derive(seed, *labels))


def seed_rank(seed: int, rank: int) -> None:
    """Seed the global generators of this rank (all devices and Python's own)."""
    torch.manual_seed(derive(seed, "rank", rank))
    random.seed(derive(seed, "python", rank))


def capture(device: torch.device) -> dict[str, torch.Tensor]:
    """States of this rank's generators, as uint8 tensors on the CPU."""
    python = json.dumps(random.getstate()).encode()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.frombuffer(bytearray(python), dtype=torch.uint8),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Undo of `capture`."""
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = json.loads(bytes(states["python"].tolist()))
    random.setstate((version, tuple(numbers), gauss))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
