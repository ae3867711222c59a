"""Asks ranks what they have of one tensor, and puts their answers into events."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from harness import events as e
from harness import orders as o
from harness.agent.workers import Worker
from harness.sightings import TensorShape, TensorSums

_Key = tuple[int, int, int, str, int, tuple[int, ...]]
"""Attempt, part, look that has shown a difference, name, look that it is from, buckets."""


class CloseUps:
    """Of one node."""

    def __init__(self) -> None:
        self._heard: dict[_Key, dict[tuple[str, str, str, str], list[int]]] = {}
        self._shapes: dict[_Key, TensorShape] = {}

    def ask(self, order: o.LookClosely, worker: Worker, at: tuple[int, int] | None) -> None:
        """`at` is the rank's plan, and the tensor's place in it; None where it has none."""
        asked = {
            "attempt": order.attempt,
            "part": order.part,
            "suspect": order.count,
            "name": order.name,
            "count": order.count,
            "buckets": order.buckets,
            "stride": max(1, order.stride),
        }
        if at is None:
            self.heard(worker.rank, {**asked, "why": "it has no digest of it any more"})
            return
        question = {**asked, "plan": at[0], "place": at[1]}
        with contextlib.suppress(OSError):  # a rank that is gone, or deaf: nobody answers
            worker.link_end.send(json.dumps(question).encode())

    def heard(self, rank: int, answer: Mapping[str, Any]) -> None:
        """What a rank says."""
        key = (
            int(answer["attempt"]),
            int(answer["part"]),
            int(answer["suspect"]),
            str(answer["name"]),
            int(answer["count"]),
            tuple(answer["buckets"]),
        )
        what = tuple(str(answer.get(each, "")) for each in ("rows", "columns", "words", "why"))
        self._heard.setdefault(key, {}).setdefault(what, []).append(rank)  # type: ignore[arg-type]
        if "dtype" in answer:
            strides = answer["strides"]
            self._shapes[key] = TensorShape(
                dtype=answer["dtype"],
                item=answer["item"],
                lengths=tuple(answer["lengths"]),
                strides=None if strides is None else tuple(strides),
            )

    def told(self, node_rank: int) -> list[e.LookedClosely]:
        """What was heard since the last call."""
        heard, self._heard = self._heard, {}
        shapes, self._shapes = self._shapes, {}
        return [
            e.LookedClosely(
                node_rank=node_rank,
                attempt=attempt,
                part=part,
                suspect=suspect,
                name=name,
                count=count,
                buckets=buckets,
                shape=shapes.get((attempt, part, suspect, name, count, buckets)),
                sums=tuple(
                    TensorSums(ranks=tuple(ranks), rows=rows, columns=columns, words=words, why=why)
                    for (rows, columns, words, why), ranks in found.items()
                ),
            )
            for (attempt, part, suspect, name, count, buckets), found in heard.items()
        ]
