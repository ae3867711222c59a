"""Answers to looks, as an agent gives them: of each rank or of all together, and what is no news
afterwards."""

import asyncio
from pathlib import Path

import pytest

from harness import events as e
from harness.agent.looking import Looks
from harness.orders import CollectEvidence


@pytest.mark.parametrize("together", [False, True])
def test_a_node_that_was_told_of_together_has_no_news_for_a_while(
    together: bool, tmp_path: Path
) -> None:
    told: list[e.Event] = []
    order = CollectEvidence(collection=3, attempt=0, why="no progress is seen", together=together)

    async def run() -> Looks:
        looks = Looks(told.append, 5.0)
        assert not looks.said(1e6)
        await looks.answer(order, [], tmp_path, 7)
        return looks

    looks = asyncio.run(run())
    assert looks.said(1e6) == together
    assert not looks.said(0.0)
    *whole, complete = told
    assert whole == ([e.EvidenceOfNode(node_rank=7, taken=())] if together else [])
    assert isinstance(complete, e.EvidenceComplete)
    assert (complete.collection, complete.node_rank) == (3, 7)
