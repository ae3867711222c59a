"""Which tokens of a sequence go where, and that the ring's ranks are equally busy."""

from __future__ import annotations

import pytest
import torch

from harness.trainer.context import _pairs, positions


@pytest.mark.parametrize("method", ["ring", "ulysses", "gather"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_token_goes_to_one_rank(method: str, ranks: int) -> None:
    held = torch.cat([positions(method, rank, ranks, 32) for rank in range(ranks)])
    assert sorted(held.tolist()) == list(range(32))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_ring_is_balanced_at_every_turn(ranks: int) -> None:
    own = [positions("ring", rank, ranks, 64) for rank in range(ranks)]
    for turn in range(ranks):
        busy = {len(_pairs(own[rank], own[(rank - turn) % ranks])) for rank in range(ranks)}
        assert busy == {3 if turn == 0 else 2}


def test_nothing_that_is_seen_is_left_out() -> None:
    own = [positions("ring", rank, 4, 64) for rank in range(4)]
    for queries in own:
        for keys in own:
            seen = torch.zeros(len(queries), len(keys), dtype=torch.bool)
            for a, b, mask in _pairs(queries, keys):
                seen[a, b] = True if mask is None else mask
            assert torch.equal(seen, queries[:, None] >= keys[None, :])
