"""Asks ranks what they have of one tensor, and puts their answers into events."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from harness import events as e
from harness import orders as o
from harness.agent.workers import Worker
from harness.sightings import TensorShape, TensorSums
from harness.worker.assignment import start_code

_Key = tuple[int, int, int, str, int, tuple[int, ...]]
"""Attempt, part, look that has shown a difference, name, look that it is from, buckets."""
_FIELDS = ("rows", "columns", "words", "why", "verdict")
_UNKNOWN = "unknown"
_JUDGE_SECONDS = 55.0
"""Longest wait for a process that has to import torch first."""


class CloseUps:
    """Of one node."""

    def __init__(self, python: str = "") -> None:
        """`python` runs the referee; that of this process when it is empty."""
        self._python = python or sys.executable
        self._judged: set[tuple[int, int, int, int]] = set()
        """Attempt, part, look and rank of updates that were, or are being, judged."""
        self._unjudged: list[tuple[int, Mapping[str, Any]]] = []
        self._judging: set[asyncio.Task[None]] = set()
        self._heard: dict[_Key, dict[tuple[str, ...], list[int]]] = {}
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
            "referee": order.referee,
        }
        if at is None:
            self.heard(worker.rank, {**asked, "why": "it has no digest of it any more"})
            return
        question = {**asked, "plan": at[0], "place": at[1]}
        with contextlib.suppress(OSError):  # a rank that is gone, or deaf: nobody answers
            worker.link_end.send(json.dumps(question).encode())

    def heard(self, rank: int, answer: Mapping[str, Any]) -> None:
        """What a rank says; the first update that it tells is judged before it is passed on."""
        update = answer.get("update")
        known = (int(answer["attempt"]), int(answer["part"]), int(answer["suspect"]), rank)
        if not answer.get("referee") or not answer.get("words") or known in self._judged:
            self._note(rank, answer)
            return
        self._judged.add(known)
        if update is None:
            self._note(rank, {**answer, "verdict": _UNKNOWN})
        else:
            self._unjudged.append((rank, answer))

    async def _judge(self, those: list[tuple[int, Mapping[str, Any]]]) -> None:
        updates = [answer["update"] for _, answer in those]
        words = await _words_of_the_referee(self._python, json.dumps(updates))
        for at, (rank, answer) in enumerate(those):
            word = words[at] if at < len(words) else ""
            self._note(rank, {**answer, "verdict": word or _UNKNOWN})

    def _note(self, rank: int, answer: Mapping[str, Any]) -> None:
        key = (
            int(answer["attempt"]),
            int(answer["part"]),
            int(answer["suspect"]),
            str(answer["name"]),
            int(answer["count"]),
            tuple(answer["buckets"]),
        )
        what = tuple(str(answer.get(each, "")) for each in _FIELDS)
        self._heard.setdefault(key, {}).setdefault(what, []).append(rank)
        if "dtype" in answer:
            strides = answer["strides"]
            self._shapes[key] = TensorShape(
                dtype=answer["dtype"],
                item=answer["item"],
                lengths=tuple(answer["lengths"]),
                strides=None if strides is None else tuple(strides),
            )

    def told(self, node_rank: int) -> list[e.LookedClosely]:
        """What was heard since the last call, but for what is being judged."""
        if self._unjudged:
            judging = asyncio.ensure_future(self._judge(self._unjudged))
            self._unjudged = []
            self._judging.add(judging)
            judging.add_done_callback(self._judging.discard)
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
                    TensorSums(
                        ranks=tuple(ranks),
                        rows=rows,
                        columns=columns,
                        words=words,
                        why=why,
                        referee=verdict,
                    )
                    for (rows, columns, words, why, verdict), ranks in found.items()
                ),
            )
            for (attempt, part, suspect, name, count, buckets), found in heard.items()
        ]


async def _words_of_the_referee(python: str, updates: str) -> list[str]:
    """For each update: right or wrong; none where it cannot tell."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", start_code("referee", "digest"),
            stdin=pipe, stdout=pipe, stderr=none, env=environ,
        )  # fmt: skip
    except OSError:
        return []
    try:
        out, _ = await asyncio.wait_for(process.communicate(updates.encode()), _JUDGE_SECONDS)
        words = json.loads(out)
    except (asyncio.TimeoutError, ValueError, OSError):
        return []
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
            await process.wait()
    return [str(word)[:16] for word in words]
