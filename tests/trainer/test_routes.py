"""What routers chose, put together from ranks and micro-batches and chosen again."""

from __future__ import annotations

import pytest
import torch

from harness.trainer import routes
from harness.trainer.config import Experts, Model
from harness.trainer.model import Transformer, initialise

MODEL = Model(d_model=8, heads=2, ffn=16, seq_len=8, layers=2)


def small(recompute: str = "none") -> Transformer:
    made = Transformer(MODEL, experts=Experts(experts=4))
    initialise(made, MODEL, 0)
    for block in made.layers.values():
        block.recompute = recompute  # type: ignore[assignment]
    return made


def tokens() -> torch.Tensor:
    return torch.randint(256, (4, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_forward_pass_is_kept_once(recompute: str) -> None:
    made = small(recompute)
    recorded = routes.record([made])
    made(tokens()[:1])  # what a pipeline passes through to learn the shapes
    for part in tokens().chunk(2):
        made(part).sum().backward()
    assert [len(one.seen) for one in recorded.values()] == [3, 3]
    places = torch.arange(8)
    (whole,) = [routes.joined(routes.pieces(recorded, 2, 0, places), 4, 8)]
    again = small()
    others = routes.record([again])
    again(tokens())
    for block, one in others.items():
        assert torch.equal(whole[block], one.seen[0])


def test_ranks_hold_parts_of_sequences() -> None:
    chosen = torch.randint(4, (4, 8, 2), generator=torch.Generator().manual_seed(0))
    places = (torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5]))
    parts = [
        routes.Piece(1, first, held, chosen[first : first + 2][:, held])
        for first in (0, 2)
        for held in places
    ]
    assert torch.equal(routes.joined(parts, 4, 8)[1], chosen)
    with pytest.raises(ValueError, match="block 1: tokens that no rank has routed"):
        routes.joined(parts[1:], 4, 8)


def test_told_otherwise_a_model_says_by_how_much_it_knew_better() -> None:
    own = small()
    recorded = routes.record([own])
    own(tokens())
    choices = {block: one.seen[0] for block, one in recorded.items()}
    same = small()
    told = routes.replay(same, choices)
    torch.testing.assert_close(same(tokens()), own(tokens()))
    assert [(one.moved, one.gap) for one in told] == [(0, 0.0), (0, 0.0)]
    other = small()
    choices[0][0, 0] = torch.tensor([e for e in range(4) if e not in choices[0][0, 0].tolist()])
    first, _ = routes.replay(other, choices)
    other(tokens())
    assert first.moved == 1
    assert 0 < first.gap < 1
