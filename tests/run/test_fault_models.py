"""The fault models of wrong numbers, each planted into a training that knows nothing of it, with
the verdict that it must get; what nothing sees is planted too, and raises nothing.

F12, damaged checkpoints, is in tests/checkpoints/test_damage.py; F16, a damaged ring of digests, in
tests/unit/test_digestlog.py; more of F17, what may differ, among tests/lookalikes. bench/sdc.py
plants many faults of the first kinds in every layout.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import doubts, replicas
from tests.run import faulting
from tests.run.node.conftest import Node

pytestmark = pytest.mark.slow
LOOKALIKES = Path(__file__).resolve().parents[1] / "lookalikes"
CORRUPT, APART, SPOILT, NOISY = (
    "silent_data_corruption",
    "replica_divergence",
    "nonfinite",
    "nondeterminism",
)
BIT = {"step": 4, "bit": 18}


@dataclass(frozen=True, kw_only=True)
class Row:
    """`fault` is an injector.Fault; `verdict` empty: nothing sees it, as the docs say."""

    layout: str
    fault: dict[str, Any]
    verdict: str = CORRUPT
    ranks: tuple[int, ...] = (2,)
    confidence: str = ""
    words: str = ""
    world: int = 3
    steps: int = 8


def _at(where: str, rank: int = 2, **more: Any) -> dict[str, Any]:
    return {"where": where, "rank": rank, **BIT, **more}


ROWS = {
    "F1 a parameter": Row(layout="ddp", fault=_at("parameter", bit=0), confidence="proven"),
    "F1 one of two replicas": Row(
        layout="ddp", fault=_at("parameter", 1), ranks=(1,), confidence="proven", world=2
    ),
    "F1 HSDP": Row(
        layout="hsdp", fault=_at("parameter", 3), ranks=(3,), confidence="proven", world=4
    ),
    "F1 TP and DP": Row(
        layout="tp_dp", fault=_at("parameter", 1), ranks=(1,), confidence="proven", world=4
    ),
    "F1 PP and DP": Row(layout="pp_dp", fault=_at("parameter"), confidence="proven", world=4),
    "F1 ZeRO": Row(layout="zero1", fault=_at("parameter"), confidence="proven"),
    "F1 a shard without a copy": Row(layout="fsdp", fault=_at("parameter"), confidence="proven"),
    "F2 four neighbours": Row(layout="ddp", fault=_at("parameter", pattern="group")),
    "F2 every 32nd, highest bit": Row(
        layout="ddp", fault=_at("parameter", pattern="stride", bit=31)
    ),
    "F3 a reduced gradient": Row(layout="ddp", fault=_at("gradient"), words="reduced gradient"),
    "F4 a moment": Row(layout="ddp", fault=_at("moment", bit=9, seed=2), steps=14),
    "F4 a moment without a copy": Row(layout="fsdp", fault=_at("moment")),
    "F5 a local gradient": Row(
        layout="ddp", fault=_at("local gradient", call=2), words="computed wrong numbers"
    ),
    "F5 a local gradient in a block of FSDP": Row(
        layout="fsdp", fault=_at("local gradient", call=1), words="first layers.0.first.weight"
    ),
    "F5 a partial sum in a group of TP": Row(
        layout="tp_dp", fault=_at("activation", call=2), words="first what it gives to", world=4
    ),
    "F5 a local gradient in a pipeline's stage": Row(
        layout="pipelined", fault=_at("local gradient", call=2), words="wrong numbers", world=4
    ),
    "F6 an activation": Row(
        layout="ddp_checkpointed", fault=_at("activation", call=2), words="block layers.0"
    ),
    "F6 a recomputation": Row(
        layout="ddp_checkpointed", fault=_at("activation", call=7), words="block layers.1"
    ),
    "F7 every product": Row(layout="ddp", fault=_at("activation", share=1.0)),
    "F7 some products": Row(layout="ddp", fault=_at("activation", share=0.2), steps=14),
    "F8 a stuck lane": Row(layout="ddp", fault=_at("stuck lane", share=1.0)),
    "F9 updates of an owner": Row(
        layout="fsdp", fault=_at("update", share=1.0, pattern="stride"), steps=14
    ),
    "F10 a reduction, wrong for all": Row(layout="ddp", fault=_at("all gradients"), verdict=""),
    "F11 NaN": Row(layout="ddp", fault=_at("nan", call=2), verdict=SPOILT, confidence="proven"),
    "F13 another rate on one rank": Row(
        layout="ddp", fault=_at("learning rate"), verdict=APART, ranks=(2,)
    ),
    "F14 noise in a recomputation": Row(
        layout="ddp_checkpointed",
        fault=_at("noise", share=1.0),
        verdict=NOISY,
        ranks=(0, 1, 2),
    ),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("faulted"), policy=faulting.ALL)
    yield made
    made.close()


@pytest.mark.parametrize("name", ROWS)
def test_a_planted_fault_gets_its_verdict(node: Node, name: str) -> None:
    row = ROWS[name]
    faulting.train(node, row.layout, row.fault, ranks=row.world, steps=row.steps)
    found = faulting.claims(node, row.world)
    if not row.verdict:
        assert found == []
        return
    first = found[0]
    assert (first.verdict, first.ranks) == (row.verdict, row.ranks), found
    assert first.confidence == row.confidence or not row.confidence
    assert row.words in first.cause
    assert {known.ranks for known in found} <= {row.ranks}  # nobody else is accused


def test_reports_that_are_lost_or_late_or_come_twice_are_no_fault(node: Node) -> None:
    """F15. The agent's ring loses the oldest, a new controller hears some of it again."""
    faulting.train(node, "ddp", None, ranks=3, steps=60)
    whole = list(node.records)
    assert any(isinstance(record.event, e.DigestsRead) for record in whole)
    draw = random.Random(7)
    for _ in range(50):
        some = [record for record in whole if draw.random() < 0.7]
        some += [record for record in whole if draw.random() < 0.3]
        for at in range(len(some) - 1):
            if draw.random() < 0.2:
                some[at], some[at + 1] = some[at + 1], some[at]
        attempt = faulting.folded(node, 3, some)
        assert [*replicas.find(attempt), *doubts.find(attempt)] == []


def test_what_may_differ_is_no_fault(node: Node) -> None:
    """F17: running statistics, dropout, an average on one rank, frozen layers."""
    faulting.run(node, (LOOKALIKES / "numbers_differ_under_ddp.py").read_text(), 2)
    assert faulting.claims(node, 2) == []


@pytest.mark.parametrize("layout", ["ddp_checkpointed", "zero1", "hsdp", "tp_dp", "pp_dp"])
def test_a_clean_training_raises_nothing(node: Node, layout: str) -> None:
    faulting.train(node, layout, None, ranks=4, steps=8)
    assert faulting.claims(node, 4) == []
