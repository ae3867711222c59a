"""Fifteen ways in which memory and arithmetic go wrong silently, drawn at random from a seed.

From observations of GPUs: single bits and bursts, damage at periodic addresses, groups of four
neighbours, lines stuck at a level, blocks that were not written, written twice or exchanged.
"""

import math
import random
from collections.abc import Callable, Iterable

import torch

from harness.digest.words import bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64)
ROW = 2039 * 8
"""Bytes of one bucket."""

Draw = random.Random
Change = Callable[[torch.Tensor, Draw], None]


def _mask(numbers: torch.Tensor, bit: int) -> int:
    """One bit as the integer of this type has it; the highest is negative."""
    size = 8 * numbers.element_size()
    return -(1 << bit) if bit == size - 1 and numbers.dtype != torch.uint8 else 1 << bit


def _flip(numbers: torch.Tensor, places: Iterable[int], bit: int) -> None:
    numbers[list(places)] ^= _mask(numbers, bit)


def _bit(numbers: torch.Tensor, draw: Draw) -> int:
    return draw.randrange(8 * numbers.element_size())


def _row_of(numbers: torch.Tensor, draw: Draw) -> tuple[int, int]:
    """The places of one bucket, or of all there is where that is less."""
    length = ROW // numbers.element_size()
    row = draw.randrange(math.ceil(len(numbers) / length))
    return row * length, min(len(numbers), (row + 1) * length)


def _two(numbers: torch.Tensor, draw: Draw, *, same_row: bool) -> list[int]:
    first, last = _row_of(numbers, draw) if same_row else (0, len(numbers))
    return draw.sample(range(first, last), 2) if last - first > 1 else [first, first]


def _block(numbers: torch.Tensor, draw: Draw) -> slice:
    length = min(len(numbers), ROW // numbers.element_size())
    first = draw.randrange(len(numbers) - length + 1)
    return slice(first, first + length)


def _every(numbers: torch.Tensor, draw: Draw) -> range:
    """Some hundreds of places at a distance that is a power of two or a multiple of it."""
    step = draw.choice((1, 2, 3)) << draw.randrange(1, 8)
    first = draw.randrange(len(numbers))
    return range(first, min(len(numbers), first + step * draw.randrange(2, 513)), step)


def single(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, [draw.randrange(len(numbers))], _bit(numbers, draw))


def burst(numbers: torch.Tensor, draw: Draw) -> None:
    place, bit = draw.randrange(len(numbers)), _bit(numbers, draw)
    for other in range(bit, min(8 * numbers.element_size(), bit + draw.randrange(2, 9))):
        _flip(numbers, [place], other)


def double_same_row(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, _two(numbers, draw, same_row=True), _bit(numbers, draw))


def double_far(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, _two(numbers, draw, same_row=False), _bit(numbers, draw))


def top_same_row(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, _two(numbers, draw, same_row=True), 8 * numbers.element_size() - 1)


def top_far(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, _two(numbers, draw, same_row=False), 8 * numbers.element_size() - 1)


def swap_same_row(numbers: torch.Tensor, draw: Draw) -> None:
    a, b = _two(numbers, draw, same_row=True)
    numbers[[a, b]] = numbers[[b, a]]


def swap_far(numbers: torch.Tensor, draw: Draw) -> None:
    a, b = _two(numbers, draw, same_row=False)
    numbers[[a, b]] = numbers[[b, a]]


def stuck_stripe(numbers: torch.Tensor, draw: Draw) -> None:
    places, mask = list(_every(numbers, draw)), _mask(numbers, _bit(numbers, draw))
    numbers[places] = numbers[places] | mask if draw.random() < 0.5 else numbers[places] & ~mask


def flip_stripe(numbers: torch.Tensor, draw: Draw) -> None:
    _flip(numbers, _every(numbers, draw), _bit(numbers, draw))


def zero_block(numbers: torch.Tensor, draw: Draw) -> None:
    numbers[_block(numbers, draw)] = 0


def stale_block(numbers: torch.Tensor, draw: Draw) -> None:
    """The numbers of a step before: all a little different, in their lowest bits."""
    block = _block(numbers, draw)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    numbers[block] -= torch.randint(0, 3, numbers[block].shape, generator=generator).to(
        numbers.dtype
    )


def garbage_block(numbers: torch.Tensor, draw: Draw) -> None:
    block = _block(numbers, draw)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    size = numbers[block].numel() * numbers.element_size()
    content = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
    numbers[block] = content.view(numbers.dtype)


def fours(numbers: torch.Tensor, draw: Draw) -> None:
    """Groups of four neighbours at periodic places, the same bit of each."""
    bit = _bit(numbers, draw)
    for first in list(_every(numbers, draw))[:: draw.choice((1, 2, 4))][:16]:
        _flip(numbers, range(first, min(first + 4, len(numbers))), bit)


def lines_of_memory(numbers: torch.Tensor, draw: Draw) -> None:
    """The same bit of an even number of places that lie 64 bytes to 64 KiB apart."""
    step = (64 << draw.randrange(11)) // numbers.element_size()
    first = draw.randrange(min(step, len(numbers)))
    places = range(first, len(numbers), step)[: 2 * draw.randrange(1, 9)]
    _flip(numbers, places, _bit(numbers, draw))


PATTERNS: dict[str, Change] = {
    change.__name__: change
    for change in (
        *(single, burst, double_same_row, double_far, top_same_row, top_far, swap_same_row),
        *(swap_far, stuck_stripe, flip_stripe, zero_block, stale_block, garbage_block, fours),
        lines_of_memory,
    )
}


def corrupt(tensor: torch.Tensor, pattern: str, draw: Draw) -> torch.Tensor:
    """Change a dense tensor in place, by at least one bit; what it held before, as `bits`.

    Put it back with `bits(tensor).copy_(before)`.
    """
    numbers = bits(tensor)
    before = numbers.clone(memory_format=torch.preserve_format)
    row = numbers.as_strided((numbers.numel(),), (1,))
    while torch.equal(numbers, before):  # a level that a bit already had, equal words exchanged
        PATTERNS[pattern](row, draw)
    return before
