"""Which experts the routers of a run chose, and the same choice made again in another model.

A choice is no smooth function of the activations: where two experts are as good as equal, the last
bit of a number format decides who gets the token, and all of its gradient goes there. So a model is
held against one that sends every token the same way, and whether that way may be told from the
other's own choice is asked on its own (`Replayed.gap`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from harness.trainer.moe import Mixture, mixtures

Choices = dict[int, torch.Tensor]
"""By number of the block: the experts of every token, int64 (sequences, seq, top_k)."""


class Recorded:
    """Keeps what one router chooses, once for each forward pass of its block."""

    def __init__(self, block: nn.Module, mixture: Mixture) -> None:
        self.seen: list[torch.Tensor] = []
        self._begun = False
        mixture.choice = self
        block.register_forward_pre_hook(self._begins)

    def _begins(self, *_: object) -> None:
        """A block that is computed again in the backward pass is not called again."""
        self._begun = True

    def __call__(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if self._begun:
            self.seen.append(chosen.detach().cpu())
            self._begun = False
        return chosen


@dataclass(slots=True)
class Replayed:
    """Chooses what was chosen elsewhere, (sequences, seq, top_k)."""

    choices: torch.Tensor
    moved: int = 0
    """Tokens that the model itself would have sent elsewhere."""
    gap: float = 0.0
    """The largest lead of an expert that it would have chosen over one that it was told to take, as
    a share of the former's score."""

    def __call__(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        told = self.choices.to(chosen.device)
        own = scores.gather(-1, chosen).amin(-1)
        lead = 1 - scores.gather(-1, told).amin(-1) / own
        elsewhere = (told.sort(-1).values != chosen.sort(-1).values).any(-1)
        self.moved += int(elsewhere.sum())
        self.gap = max(self.gap, float(lead.max()))
        return told


def record(parts: Iterable[nn.Module]) -> dict[int, Recorded]:
    """From now on; by number of the block."""
    found = {}
    for part in parts:
        blocks: nn.ModuleDict = part.layers  # type: ignore[assignment]
        for number, mixture in mixtures([part]).items():
            found[number] = Recorded(blocks[str(number)], mixture)
    return found


def replay(model: nn.Module, choices: Choices) -> list[Replayed]:
    """Let the model's routers choose so."""
    told = []
    for number, mixture in mixtures([model]).items():
        mixture.choice = Replayed(choices[number])
        told.append(mixture.choice)
    return told


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank's router of one block chose: for which sequences and places in them."""

    block: int
    first: int
    places: torch.Tensor
    chosen: torch.Tensor
    """(sequences of the rank, places, top_k)"""


def pieces(
    recorded: dict[int, Recorded], micro_batches: int, first: int, places: torch.Tensor
) -> list[Piece]:
    """Of the step just taken: its micro-batches are the newest (a pipeline passes some memory
    through before, to learn the shapes). `first` is the rank's first sequence of the batch,
    `places` the tokens of each that come to it."""
    return [
        Piece(block, first, places, torch.cat(one.seen[-micro_batches:]))
        for block, one in recorded.items()
    ]


def joined(parts: Iterable[Piece], sequences: int, seq: int) -> Choices:
    """The pieces of all ranks. ValueError where a token was routed by none of them."""
    whole: Choices = {}
    for part in parts:
        count, _, top_k = part.chosen.shape
        table = whole.setdefault(part.block, torch.full((sequences, seq, top_k), -1))
        table[part.first : part.first + count, part.places] = part.chosen
    for block, table in whole.items():
        if int(table.min()) < 0:
            raise ValueError(f"block {block}: tokens that no rank has routed")
    return whole
