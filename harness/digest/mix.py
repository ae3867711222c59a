"""Arithmetic modulo 2^64 on int64 tensors, which have neither unsigned shifts nor constants."""

import torch

MASK = (1 << 64) - 1


def odd(numbers: torch.Tensor) -> torch.Tensor:
    """Odd numbers drawn from distinct ones by the finaliser of splitmix64, Steele et al. 2014."""
    mixed = numbers * signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ shifted(mixed, 30)) * signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ shifted(mixed, 27)) * signed(0x94D049BB133111EB)
    return (mixed ^ shifted(mixed, 31)) | 1


def shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; torch's own repeats the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def signed(constant: int) -> int:
    """The number of 64 bits as int64 has it."""
    return constant - (1 << 64) if constant >> 63 else constant
