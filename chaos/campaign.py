"""Many plans, one after the other: kinds x workloads x ranks, or drawn from a seed for hours."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.chaos import plan as plans
from harness.chaos.executor import Executed, execute
from harness.chaos.judge import Judgment, judge
from harness.chaos.plan import Plan
from harness.errors import UsageError

Say = Callable[[str], None]
_CALM: dict[Path, Executed] = {}
"""Runs without faults, by folder; one serves all plans of the same run."""


def fresh(out: Path, name: str) -> Path:
    """A folder under `out` that does not exist yet, called after the plan."""
    number = 0
    while (folder := out / (f"{name}-{number}" if number else name)).exists():
        number += 1
    return folder


def carry_out(plan: Plan, folder: Path, *, calm: bool = True, say: Say) -> Judgment:
    """Run `plan`, and once per workload the same without faults, and judge."""
    plans.check(plan)
    done = execute(plan, folder, say=say)
    compare = without_faults(plan, folder.parent, say) if calm and done.code == 0 else None
    judgment = judge(done, compare)
    (folder / "plan.toml").write_text(plans.text(plan), encoding="utf-8")
    (folder / "judgment.json").write_text(json.dumps(as_dict(judgment), indent=1) + "\n")
    return judgment


def without_faults(plan: Plan, out: Path, say: Say) -> Executed:
    """The same run undisturbed; made once for each command line. Raises UsageError when it fails."""
    one = plan.workload
    key = hashlib.sha256(repr(one).encode()).hexdigest()[:12]
    folder = out / f"calm-{one.name}-{key}"
    if folder not in _CALM:
        if folder.exists():
            shutil.rmtree(folder)
        say(f"the same without faults: {folder}")
        _CALM[folder] = execute(dataclasses.replace(plan, faults=()), folder)
    calm = _CALM[folder]
    if calm.code != 0:
        raise UsageError(
            f"the run without faults ended with exit code {calm.code}",
            help=f"see {folder / 'output.txt'}",
        )
    return calm


def as_dict(judgment: Judgment) -> dict[str, Any]:
    """A judgment as JSON has it."""
    found = dataclasses.asdict(judgment)
    return {**found, "right": judgment.right, "wrong": judgment.wrong()}
