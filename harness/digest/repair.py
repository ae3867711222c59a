"""Wrong words of the tensors at hand: their elements and bits, and the right content put back."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.digest.layout import WIDTH, WORD, Layout
from harness.digest.locate import Word, corrected
from harness.digest.mix import MASK, signed
from harness.digest.words import local, order, window, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A wrong word of a tensor, and what it should be, both below 2^64."""

    tensor: int
    """Place in the plan."""
    name: str
    index: int
    """Of the word in its tensor, in the order of memory."""
    bad: int
    good: int
    elements: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Coordinates of each element that was changed, with its changed bits; bit 0 is the lowest."""


def inspect(layout: Layout, tensors: Sequence[torch.Tensor], damage: Sequence[Word]) -> list[Wrong]:
    """Read the words that `locate` named in the bad replica's tensors, in the order of the plan.

    Words of filling, which no tensor has, are left out: there the sums themselves were wrong.
    """
    found = []
    for word in damage:
        place = layout.tensor(word.bucket)
        shape = layout.shapes[place]
        index = (word.bucket - layout.firsts[place]) * WIDTH + word.column
        if index >= shape.words:
            continue
        bad = int(words(tensors[place])[index]) & MASK
        good, bits = corrected(bad, word.delta)
        elements: dict[tuple[int, ...], list[int]] = {}
        for bit in bits:
            if at := layout.element(word.bucket, word.column, bit):
                elements.setdefault(at[1], []).append(at[2])
        changed = tuple((where, tuple(which)) for where, which in elements.items())
        found.append(
            Wrong(tensor=place, name=shape.name, index=index, bad=bad, good=good, elements=changed)
        )
    return found


def repair(tensors: Sequence[torch.Tensor], wrong: Sequence[Wrong]) -> None:
    """Write the right words; digests should then be taken and compared again.

    Raises RuntimeError where elements overlap in memory, so that one cannot be written alone.
    """
    with torch.no_grad():
        for word in wrong:
            _write(local(tensors[word.tensor]), word.index, word.good)


def _write(tensor: torch.Tensor, index: int, word: int) -> None:
    size = tensor.numel() * tensor.element_size()
    if order(tensor) is None:
        row = words(tensor)
        row[index] = signed(word)
        strides = torch.empty(tensor.shape, device="meta").stride()
        shape = tuple(tensor.shape)
        tensor.copy_(window(row.untyped_storage(), 0, shape, strides, tensor.dtype))
        return
    begin = int(tensor.storage_offset()) * tensor.element_size()
    memory = window(tensor.untyped_storage(), begin, (size,), (1,), torch.uint8)
    content = word.to_bytes(WORD, "little")[: size - index * WORD]
    piece = memory[index * WORD : index * WORD + len(content)]
    piece.copy_(torch.tensor(list(content), dtype=torch.uint8))
