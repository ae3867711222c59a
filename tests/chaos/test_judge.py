"""The judge on runs that are told by hand: what is right, and everything that is not."""

import dataclasses
from pathlib import Path

import pytest

from harness.chaos.campaign import Cell
from harness.chaos.executor import Executed
from harness.chaos.judge import Judgment, judge
from harness.chaos.plan import Plan, Planned
from harness.chaos.residue import Residue
from harness.chaos.tables import junit, markdown
from harness.chaos.workloads import workload
from harness.events import FaultInjected
from harness.faults import Fault
from harness.incidents import Incident, Verdict
from harness.state import RunState
from harness.state.words import AttemptState, CheckpointMark

SECOND = 10**9


def incident(verdict: str, ranks: tuple[int, ...], action: str = "restart") -> Incident:
    return Incident(
        id=1,
        verdict=Verdict(
            verdict=verdict,
            first_failing=ranks,
            victims=(),
            innocent=(),
            cause="",
            reason="",
            confidence="proven",
            onset_ns=10 * SECOND,
            attempt=0,
            step=12,
            signature="",
        ),
        action=action,  # type: ignore[arg-type]
        action_reason="",
        detected_ns=12 * SECOND,
        lost_steps=2,
    )


def finished(tmp_path: Path, kind: str, *incidents: Incident, code: int = 0) -> Executed:
    """A run in which `kind` was done to rank 1, and both runs left the same parameters."""
    fault = Fault(kind=kind, rank=1, step=12)
    state = RunState()
    state.faults.append(FaultInjected(fault=fault, pid=7, injected_ns=10 * SECOND))
    state.incidents += incidents
    for name in ("calm", "run/work"):
        (tmp_path / name / "final").mkdir(parents=True)
        (tmp_path / name / "final" / "rank0.bin").write_bytes(b"same")
    plan = Plan(name="it", workload=workload("ddp"), faults=(Planned(fault=fault),))
    return Executed(
        plan=plan,
        folder=tmp_path / "run",
        code=code,
        state=state,
        residue=Residue(),
        seconds=20.0,
    )


def judged(tmp_path: Path, done: Executed) -> Judgment:
    return judge(done, tmp_path / "calm")


def wrong(tmp_path: Path, done: Executed) -> set[str]:
    return {check.name for check in judged(tmp_path, done).checks if check.ok is False}


def test_a_run_that_is_judged_rightly(tmp_path: Path) -> None:
    found = judged(tmp_path, finished(tmp_path, "kill", incident("killed_by_signal", (1,))))
    assert found.right, found.wrong()
    assert (found.expected, found.said) == ("killed_by_signal", "killed_by_signal")
    assert (found.mttd, found.lost_steps, found.ranks) == (2.0, 2, (1,))
    assert found.check("final") is True


@pytest.mark.parametrize(
    ("kind", "said", "mistakes"),
    [
        ("kill", [], {"class"}),
        ("kill", [incident("exception", (1,))], {"class"}),
        ("kill", [incident("killed_by_signal", (2,))], {"ranks", "innocents"}),
        ("kill", [incident("killed_by_signal", (1, 2))], {"ranks", "innocents"}),
        ("kill", [incident("killed_by_signal", (1,), "stop")], {"action", "outcome"}),
        (
            "kill",
            [incident("killed_by_signal", (1,)), incident("straggler", (0,), "report")],
            {"class", "innocents"},
        ),
        ("pause", [], set()),
        ("pause", [incident("rank_frozen", (1,))], {"class"}),
        ("connection_reset", [incident("exception", (1, 2))], set()),
        ("connection_reset", [incident("exception", (0, 2))], set()),
        ("connection_reset", [incident("exception", (0, 2, 3))], {"ranks"}),
    ],
)
def test_each_mistake_is_found(
    tmp_path: Path, kind: str, said: list[Incident], mistakes: set[str]
) -> None:
    assert wrong(tmp_path, finished(tmp_path, kind, *said)) == mistakes


def test_each_fault_has_a_row_of_its_own(tmp_path: Path) -> None:
    done = finished(tmp_path, "kill", incident("killed_by_signal", (1,)))
    pause = Fault(kind="pause", rank=0)
    done.state.faults.append(FaultInjected(fault=pause, pid=8, injected_ns=11 * SECOND))
    kill, nothing = judged(tmp_path, done).rows
    assert (kill.kind, kill.target, kill.said, kill.ranks, kill.action, kill.mttd) == (
        "kill", "rank 1", "killed_by_signal", (1,), "restart", 2.0,
    )  # fmt: skip
    assert (nothing.kind, nothing.said, nothing.ranks) == ("pause", "nothing", ())
    assert nothing.mttd is None


def test_what_is_not_whole_is_found(tmp_path: Path) -> None:
    good = finished(tmp_path, "kill", incident("killed_by_signal", (1,)))
    left = dataclasses.replace(good, residue=Residue(orphans=("99 sleep",), ports=(4711,)))
    assert wrong(tmp_path, left) == {"residue"}
    assert wrong(tmp_path, dataclasses.replace(good, code=1)) == {"outcome"}
    assert "outcome" in wrong(tmp_path, dataclasses.replace(good, timed_out=True))
    refused = dataclasses.replace(good, refused=["kill: no"])
    assert wrong(tmp_path, refused) == {"done"}
    (good.work / "final" / "rank0.bin").write_bytes(b"diff")
    assert wrong(tmp_path, good) == {"final"}


def test_tables_hold_every_run(tmp_path: Path) -> None:
    done = finished(tmp_path, "kill", incident("exception", (1,)))
    bad = Cell(plan=done.plan, judgment=judged(tmp_path, done))
    broken = Cell(plan=done.plan, error='a "broken" run')
    text = markdown([bad, broken], "harness chaos campaign")
    assert "2 runs, 0 right" in text
    assert "| killed_by_signal | exception | 1 |" in text
    assert "| process | kill | 0 of 2 (rank 1) |" in text
    xml = junit([bad, broken])
    assert 'tests="2" failures="2"' in xml
    assert "&quot;broken&quot;" in xml or "'a \"broken\" run'" in xml


def test_what_was_said_before_the_harm_is_not_said_of_it(tmp_path: Path) -> None:
    early = incident("killed_by_signal", (1,))
    early = dataclasses.replace(early, detected_ns=9 * SECOND)
    assert "class" in wrong(tmp_path, finished(tmp_path, "kill", early))


@pytest.mark.parametrize(("whole_ns", "mistakes"), [(0, set()), (9 * SECOND, {"lost steps"})])
def test_a_save_that_was_still_being_written_is_no_checkpoint(
    tmp_path: Path, whole_ns: int, mistakes: set[str]
) -> None:
    """Killed at step 11, back at step 5: right if that of step 10 was not whole yet."""
    told = dataclasses.replace(incident("killed_by_signal", (1,)), lost_steps=6)
    done = finished(tmp_path, "kill", told)
    for index, resumed in enumerate((None, 5)):
        done.state.attempts.append(
            AttemptState(index=index, world_size=3, ranks={}, nodes={}, why="",
                         started_ns=index * 20 * SECOND, resumed_step=resumed)
        )  # fmt: skip
    done.state.checkpoints[10] = CheckpointMark(
        step=10, path="10", saved_by=frozenset(), seconds=0.1, attempt=0, whole_ns=whole_ns
    )
    assert wrong(tmp_path, done) == mistakes
