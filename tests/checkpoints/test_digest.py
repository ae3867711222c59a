"""The digest of a tensor: the same for every way to cut it, another for every change."""

from __future__ import annotations

import random

import pytest
import torch

from harness.sdk.checkpoint.digest import digest

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
    *(torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128),
]
SHAPES = [(), (1,), (20_000,), (30, 50), (7, 11, 13), (3, 40_000), (900, 2), (0, 4)]


def some(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    most = 2 if dtype is torch.bool else 256
    content = torch.randint(0, most, (*shape, size), generator=generator, dtype=torch.uint8)
    return content.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shards_of_any_layout_add_up(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        tensor = some(dtype, shape)
        whole = digest(tensor)
        for dim in range(len(shape)):
            for parts in (2, 3):
                total, first = 0, 0
                for chunk in tensor.chunk(parts, dim):
                    offsets = [0] * len(shape)
                    offsets[dim] = first
                    total += digest(chunk, offsets)
                    first += chunk.shape[dim]
                assert total % (1 << 64) == whole


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_change_changes_it(dtype: torch.dtype) -> None:
    draw = random.Random(5)
    tensor = some(dtype, (60, 70))
    whole = digest(tensor)
    size = tensor.element_size()
    top = 0 if dtype is torch.bool else 8 * size - 1
    for _ in range(40):
        changed = tensor.clone()
        content = changed.view(torch.uint8).reshape(-1)
        element = draw.sample(range(tensor.numel()), 3)
        patterns = {
            "one bit": [(element[0], draw.randrange(top + 1))],
            "the top bit of two": [(element[0], top), (element[1], top)],
            "three bits": [(e, draw.randrange(top + 1)) for e in element],
        }
        for bits in patterns.values():
            for at, bit in bits:
                content[at * size + bit // 8] ^= 1 << (bit % 8)
            assert digest(changed) != whole
            for at, bit in bits:
                content[at * size + bit // 8] ^= 1 << (bit % 8)
        assert digest(changed) == whole
    assert digest(torch.cat([tensor[1:], tensor[:1]])) != whole
    assert digest(torch.cat([tensor[:, 1:], tensor[:, :1]], dim=1)) != whole


def test_it_is_the_same_everywhere() -> None:
    """Written down once: manifests outlive versions of this code."""
    assert digest(torch.arange(100_000, dtype=torch.float32).reshape(250, 400)) == KNOWN


def test_it_sees_what_comparison_does_not() -> None:
    zeros = torch.zeros(4)
    assert torch.equal(zeros, -zeros)
    assert digest(zeros) != digest(-zeros)


KNOWN = 13298530378053582848
