"""The kinds of fault as a whole: each is complete, and what it promises exists."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.chaos import kinds
from harness.chaos.workloads import BUILT_IN
from harness.errors import UsageError
from harness.faults import Fault
from harness.incidents import FAMILY_OF

ROOT = Path(__file__).resolve().parents[2]
AREAS = {
    "process", "thread", "collective", "tensor", "loader", "checkpoint", "network", "resource",
    "clock",
}  # fmt: skip


def test_there_are_thirty_kinds_and_more_over_all_areas() -> None:
    found = kinds.everything()
    assert len(found) >= 30
    assert {kind.area for kind in found} == AREAS


@pytest.mark.parametrize("name", kinds.names())
def test_a_kind_names_what_must_come_of_it(name: str) -> None:
    kind = kinds.find(name)
    assert kind.name == name
    assert {*kind.verdicts, *kind.also} <= FAMILY_OF.keys()
    assert set(kind.actions) <= {"restart", "rollback", "stop", "report", "none"}
    assert bool(kind.verdicts) == bool(kind.actions)
    assert kind.place == "agent" or not kind.on_node


def test_every_need_of_a_kind_is_met_by_some_workload() -> None:
    offered = {need for one in BUILT_IN.values() for need in one.has}
    needed = {kind.needs for kind in kinds.everything()} - {"", "several nodes"}
    assert needed <= offered


def test_looking_at_all_kinds_imports_no_torch() -> None:
    code = (
        "import sys; from harness.chaos import kinds, plan, tables; kinds.everything();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(kind="kil", rank=0), "no kind of fault is called 'kil'"),
        (Fault(kind="kill"), "kill is done to a rank"),
        (Fault(kind="node_kill", rank=0), "node_kill is done to a node, not to a rank"),
        (Fault(kind="node_kill", node=1, step=3), "node_kill is done to a node, which has no"),
        (Fault(kind="kill", rank=0, times=0), "kill: times is at least 1"),
        (
            Fault(kind="slow", rank=0, parameters={"miliseconds": "3"}),
            "slow has no parameter 'miliseconds'",
        ),
        (
            Fault(kind="slow", rank=0, parameters={"milliseconds": "soon"}),
            "slow: milliseconds is a number, not 'soon'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(fault: Fault, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}") as refused:
        kinds.check(fault)
    assert "\n" not in refused.value.message
