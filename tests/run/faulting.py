"""Trainings of bench/scripts/replicated.py with one planted fault each, under a real agent."""

import sys
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import events as e
from harness import orders
from harness.diagnosis import doubts, replicas
from harness.incidents import Finding
from harness.policy import Policy
from harness.state import AttemptState, digesting
from harness.state.rerun import Rerun, pending
from tests.run.node.conftest import Node

SCRIPTS = Path(__file__).resolve().parents[2] / "bench" / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))
ALL = Policy(digest_share=1e9, audit_share=1e9, replays=1)
"""Every look at every step, whatever it costs."""
BEGIN = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import torch, torch.distributed as dist
import injector, replicated
torch.set_num_threads(1)
dist.init_process_group("gloo")
"""
_END = """
dist.barrier()
dist.destroy_process_group()
"""


def train(node: Node, layout: str, fault: dict[str, Any] | None, *, ranks: int, steps: int) -> None:
    """One training; raises AssertionError when it or a check of its ranks failed."""
    planned = "None" if fault is None else f"injector.Fault(**{fault!r})"
    middle = f"injector.arm({planned})\nreplicated.train({layout!r}, steps={steps})\n"
    run(node, BEGIN + middle + _END, ranks)


def run(node: Node, script: str, ranks: int) -> None:
    node.launch(script, ranks=ranks)
    exits = node.finish(ranks)
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0)
    assert "hook failed" not in node.err.read_text()


def folded(
    node: Node,
    ranks: int,
    records: list[e.Record] | None = None,
    reruns: Sequence[Rerun] = (),
) -> AttemptState:
    """What the state holds of the ranks' numbers after the attempt; `reruns` are what it may have
    computed again."""
    attempt = AttemptState(
        index=node.attempt, world_size=ranks, ranks={}, nodes={}, why="", started_ns=0
    )
    attempt.gone.update(range(ranks))
    attempt.reruns.extend(reruns)
    for record in node.records if records is None else records:
        if isinstance(record.event, e.DigestsRead | e.DigestsTold | e.DoubtRaised):
            digesting.note(attempt, (record.stamp.source, record.stamp.seq), record.event)
    return attempt


def claims(node: Node, ranks: int) -> list[Finding]:
    """What the detectors say, the one that is believed first."""
    for known in replicas.unnamed(folded(node, ranks)):
        part, count = known.track.part.part, known.at.count
        node.order(orders.TellDigests(attempt=node.attempt, part=part, count=count))
        node.until(
            e.DigestsTold,
            lambda told, part=part, count=count: (told.part, told.count) == (part, count),
        )
    attempt = folded(node, ranks)
    return [*replicas.find(attempt), *doubts.find(attempt)]


def train_many(
    node: Node,
    layout: str,
    faults: list[Any],
    *,
    ranks: int,
    steps: int,
    only: Container[int] | None = None,
) -> None:
    """One training after the other in one attempt; parameters of the n-th begin with `run<n>.`.
    What each rank holds at its end is printed (`ends_of_each`). Of those that are not among `only`
    a single step is made, as optimizers are known by their number."""
    middle = ""
    for number, fault in enumerate(faults):
        planned = "None" if fault is None else f"injector.{fault!r}"
        middle += f"injector.arm({planned})\n"
        length = steps if only is None or number in only else 1
        middle += f"done = replicated.train({layout!r}, steps={length}, name='run{number}')\n"
        middle += "print('end', replicated.numbers_of(done), flush=True)\n"
        middle += "dist.barrier()\n"
    run(node, BEGIN + middle + _END, ranks)


def ends_of_each(node: Node, ranks: int) -> list[tuple[str, ...]]:
    """By training: a hash of the numbers that each rank has come to."""
    told = [
        [line.split()[1] for line in node.log(rank).splitlines() if line.startswith("end ")]
        for rank in range(ranks)
    ]
    return list(zip(*told, strict=True))


def computed_again(
    node: Node,
    layout: str,
    found: list[list[Finding]],
    *,
    ranks: int,
    steps: int,
    proven: bool = True,
) -> list[list[Finding]]:
    """`found` of the trainings of the attempt before, as they read after a rollback that begins
    them all again, without a fault; without `proven`, those that are proven are left as
    they are."""
    open_ones = {
        number
        for number, findings in enumerate(found)
        if proven or (findings and findings[0].confidence != "proven")
    }
    if not open_ones:
        return found
    before = folded(node, ranks).replicas
    reruns = pending(before.tracks.values(), before.suspicions, node.attempt)
    train_many(node, layout, [None] * len(found), ranks=ranks, steps=steps, only=open_ones)
    right = {
        rerun.known.at.ref: (rerun.known.group, rerun.right)
        for rerun in folded(node, ranks, reruns=reruns).reruns
        if rerun.right
    }

    def settled(finding: Finding) -> Finding:
        (shown, *_) = finding.evidence
        group, same = right.get((shown.source, shown.seq), (frozenset(), frozenset()))
        wrong = tuple(sorted(group - (same or frozenset())))
        return replace(finding, ranks=wrong, confidence="proven") if same and wrong else finding

    return [
        [settled(finding) for finding in findings] if number in open_ones else findings
        for number, findings in enumerate(found)
    ]


def claims_of_each(node: Node, ranks: int, count: int) -> list[list[Finding]]:
    """What the detectors say of each of `count` trainings of one attempt, by itself."""
    claims(node, ranks)
    found = []
    for number in range(count):
        attempt, name = folded(node, ranks), f"run{number}."
        attempt.replicas.suspicions = [
            known for known in attempt.replicas.suspicions if name in known.track.part.name
        ]
        for rank, told in attempt.doubts.by_rank.items():
            attempt.doubts.by_rank[rank] = {
                key: each
                for key, each in told.items()
                if name in " ".join((each.doubt.subject, *each.doubt.tensors))
            }
        found.append([*replicas.find(attempt), *doubts.find(attempt)])
    return found
