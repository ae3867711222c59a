"""Every random number of a run: seeds derived from the one that is given."""

from __future__ import annotations

import hashlib
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
