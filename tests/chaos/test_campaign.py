"""Campaigns: what runs there are, and going on where one was interrupted."""

import dataclasses
import itertools
import json
from pathlib import Path

from harness.chaos import campaign, kinds, plan, series
from harness.chaos.judge import Check, Judgment, Row
from harness.chaos.workloads import workload

LAYOUTS = [workload("dp2"), workload("fsdp4")]
CHOSEN = [kinds.find(name) for name in ("kill", "pause", "exit_zero", "stop", "slow")]


def test_a_series_does_what_single_runs_would_do() -> None:
    singles = campaign.matrix(CHOSEN, LAYOUTS, (), 7)
    runs = list(series.joined(singles, 4, 7))
    done = [(run.workload.name, p.fault.kind, p.fault.rank) for run in runs for p in run.faults]
    asked = [
        (each.workload.name, f.kind, f.rank) for each in singles for f in [each.faults[0].fault]
    ]
    assert sorted(done) == sorted(asked)
    assert max(len(run.faults) for run in runs) == 4
    for run in runs:
        plan.check(run)
        names = [planned.fault.kind for planned in run.faults]
        assert not {"exit_zero", "slow"} & {*names} or len(names) == 1
        assert all(one != two for one, two in itertools.pairwise(names))
    first = [run.workload.name for run in runs[:2]]
    assert first == ["dp2", "fsdp4"]


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    one, two = campaign.matrix(CHOSEN[:2], LAYOUTS[:1], (1,), 0)
    row = Row(kind="kill", target="rank 1", said="nothing", ranks=(), action="none", mttd=None,
              wrong={"class": "not told"})  # fmt: skip
    judgment = Judgment(
        plan="it", checks=(Check(name="class", ok=False, says="not told"),), rows=(row,),
        expected="killed_by_signal", said="nothing", ranks=(), mttd=None, lost_steps=None,
        seconds=3.0, folder="",
    )  # fmt: skip
    folder = tmp_path / one.name
    folder.mkdir()
    (folder / "plan.toml").write_text(plan.text(one))
    (folder / "judgment.json").write_text(json.dumps(campaign.as_dict(judgment)))
    cells = campaign.campaign([one, two], tmp_path, seconds=0, say=print)
    assert [(cell.plan, cell.judgment) for cell in cells] == [(one, judgment)]
    other = dataclasses.replace(one, seed=5)
    assert campaign.campaign([other], tmp_path, seconds=0, say=print) == []
