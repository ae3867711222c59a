"""Plans: read, written, drawn, guarded."""

import dataclasses
from pathlib import Path

import pytest

from harness.chaos import campaign, combined, kinds, plan, shrink
from harness.chaos.plan import Guard, Plan, Planned
from harness.chaos.workloads import workload
from harness.errors import UsageError
from harness.faults import Fault

WHOLE = """
name = "two at once"
seed = 7
[run]
workload = "ddp"
nproc = 4
[guard]
ranks = 2
[[fault]]
kind = "kill"
rank = 1
step = 12
[[fault]]
kind = "flip_parameter"
at = { tp = 0, pp = 1 }
after = "incident"
seq_id = 40
seconds = 1.5
parameters = { bit = 3 }
"""


def read(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return plan.read(file)


def test_a_plan_is_read_and_written_without_loss(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert (found.name, found.seed, found.workload.nproc) == ("two at once", 7, 4)
    assert [planned.fault.kind for planned in found.faults] == ["kill", "flip_parameter"]
    assert found.faults[1].at == {"tp": 0, "pp": 1}
    assert found.faults[1].fault.parameters == {"bit": "3"}
    assert found.faults[1].fault.seed == 7
    assert read(tmp_path, plan.text(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "not TOML"),
        ("[run]\nworkload = 'dpp'", "no workload is called 'dpp'"),
        ("[run]\nnprocs = 3", "[run] has no 'nprocs'"),
        ("[[fault]]\nrank = 1", "fault 1 has no kind"),
        ("[[fault]]\nkind = 'kill'\nrank = 9", "fault 1 (kill): there is no rank 9"),
        ("[[fault]]\nkind = 'kill'\nrank = 1\nafter = 'lunch'", "after = 'lunch' is not known"),
        ("[[fault]]\nkind = 'kill'\nrank = 1\nat = { tp = 0 }", "both a rank and coordinates"),
        ("seed = 'x'", "seed is a whole number"),
        (
            "".join(f"[[fault]]\nkind = 'kill'\nrank = {rank}\n" for rank in range(3)),
            "the plan harms 3 ranks, its guard allows 2",
        ),
    ],
)
def test_a_wrong_plan_is_refused_in_a_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
    assert (
        "plan.toml" in refused.value.message
        or "guard" in message
        or "rank 9" in message
        or ("lunch" in message)
    )


def test_a_seed_draws_the_same_plan_again() -> None:
    one = workload("ddp")
    drawn = [plan.drawn(one, 2, seed) for seed in range(20)]
    assert drawn == [plan.drawn(one, 2, seed) for seed in range(20)]
    assert len({str(each) for each in drawn}) > 10
    for each in drawn:
        plan.check(each)


def test_single_plans_fit_and_are_long_enough() -> None:
    one = workload("ddp")
    for kind in kinds.everything():
        if plan.fitting(kind, one):
            found = plan.single(kind, one, 1, 0)
            plan.check(found)
            step = found.faults[0].fault.step or 0
            assert kind.on_node or step > kind.before
            assert step + max(kind.steps, one.every) <= found.workload.steps


def test_what_strikes_in_a_save_is_done_to_a_rank_that_saves() -> None:
    one = workload("ddp")
    found = campaign.matrix([kinds.find("disk_full"), kinds.find("kill")], [one], (1, 2), 0)
    assert [(p.faults[0].fault.kind, p.faults[0].fault.rank) for p in found] == [
        ("disk_full", 0),
        ("kill", 1),
        ("kill", 2),
    ]


def test_drawn_plans_leave_each_attempt_its_steps() -> None:
    for seed in range(20):
        found = plan.drawn(workload("ddp"), 3, seed)
        steps = [planned.fault.step or 0 for planned in found.faults]
        assert sum(steps) + 2 * found.workload.every <= found.workload.steps


def test_combined_plans_pass_their_guard() -> None:
    nodes = dataclasses.replace(workload("dp4"), nodes=2)
    for one in (workload("ddp"), workload("dp4"), nodes):
        found = combined.plans(one, 0)
        assert len(found) >= 6
        for each in found:
            plan.check(each)


def test_a_failing_plan_becomes_small() -> None:
    faults = tuple(
        Planned(fault=Fault(kind=kind, rank=1, step=12, times=2, parameters=parameters))
        for kind, parameters in (("kill", {}), ("slow", {"milliseconds": "3"}), ("stop", {}))
    )
    whole = Plan(
        workload=dataclasses.replace(workload("ddp"), steps=400),
        faults=faults,
        guard=Guard(faults=3),
    )
    runs = []

    def fails(tried: Plan) -> bool:
        runs.append(tried)
        return any(planned.fault.kind == "slow" for planned in tried.faults)

    small = shrink.shrink(whole, fails, 50)
    assert [planned.fault for planned in small.faults] == [Fault(kind="slow", rank=1, step=12)]
    assert small.workload.steps == 22
    assert len(runs) < 15
    assert shrink.shrink(whole, fails, 0) == whole
