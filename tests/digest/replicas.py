"""Tensors of one type as they lie in real models, and two replicas of them."""

import torch

from harness.digest.plan import Plan

SHAPES = {
    "small": (701,),
    "square": (150, 400),
    "long": (70_003,),
    "vector": (257, 3),
}


def content(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Numbers of a normal distribution; for integers and truth values any bits they can have."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    size = dtype.itemsize
    row = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    return row.view(dtype).reshape(shape)


def replica(dtype: torch.dtype, seed: int, *, apart: int = 0) -> dict[str, torch.Tensor]:
    """Dense tensors: small ones, large ones, a transposed one and one off the beginning of a word.

    Replicas of one seed are equal in every bit; `apart` moves the last one in its memory.
    """
    found = {
        name: content(dtype, shape, seed + k) for k, (name, shape) in enumerate(SHAPES.items())
    }
    found["transposed"] = content(dtype, (100, 331), seed + 10).t()
    memory = content(dtype, (40_000 + 1 + apart,), seed + 11)
    memory[1 + apart :] = content(dtype, (40_000,), seed + 12)
    found["aside"] = memory[1 + apart :]
    return found


def plan(tensors: dict[str, torch.Tensor]) -> Plan:
    return Plan(list(tensors.items()))
