"""What goes on beside a node's work for as long as its agent lives, and decides nothing."""

from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

from harness import events as e
from harness.agent import exposing, gpus, marks, trimming
from harness.agent.workers import Worker
from harness.config import Job


def of_node(
    job: Job,
    run_dir: Path,
    node_rank: int,
    workers: Callable[[], Collection[Worker]],
    report: Callable[[int, e.Event], None],
    notice: Callable[[str], None],
) -> list[Coroutine[Any, Any, None]]:
    """Each to be run beside the others."""
    seen = gpus.Gpus(node_rank, workers, report)
    return [
        seen.watch(),
        marks.watch(workers, node_rank, report),
        exposing.expose(job, run_dir, node_rank, workers, seen, notice),
        trimming.trim(),
    ]
