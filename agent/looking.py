"""Answers to looks at a node's ranks."""

import time
from collections.abc import Callable
from pathlib import Path

from harness import events as e
from harness.agent import evidence
from harness.agent.workers import Worker
from harness.orders import CollectEvidence

EVIDENCE_SHARE = 0.8
"""Of the controller's budget; the rest is for the way there."""


class Looks:
    """Looks at `workers`, told with `report` within a share of `budget` seconds."""

    def __init__(self, report: Callable[[e.Event], None], budget: float) -> None:
        self._report = report
        self._seconds = budget * EVIDENCE_SHARE
        self._under_way = 0
        self._told_at = float("-inf")

    def said(self, pause: float) -> bool:
        """Whether the ranks are being told of together, or were less than `pause` seconds ago:
        that nothing has changed since then is no news."""
        return self._under_way > 0 or time.monotonic() - self._told_at < pause

    async def answer(
        self, order: CollectEvidence, workers: list[Worker], run_dir: Path, node_rank: int
    ) -> None:
        """Take the evidence that `order` asks for, of each rank by itself or of all together."""
        started = time.monotonic()
        taken: list[e.EvidenceTaken] = []
        self._under_way += order.together
        try:
            on_taken = taken.append if order.together else self._report
            await evidence.collect(workers, order, run_dir, self._seconds, on_taken)
        finally:
            self._under_way -= order.together
        if order.together:
            self._told_at = time.monotonic()
            self._report(e.EvidenceOfNode(node_rank=node_rank, taken=tuple(taken)))
        seconds = round(time.monotonic() - started, 3)
        self._report(
            e.EvidenceComplete(collection=order.collection, node_rank=node_rank, seconds=seconds)
        )
