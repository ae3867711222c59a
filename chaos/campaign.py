"""Many plans, one after the other: kinds x workloads x ranks, or drawn from a seed for hours."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.chaos import kinds
from harness.chaos import plan as plans
from harness.chaos.executor import execute
from harness.chaos.judge import Judgment, from_dict, judge
from harness.chaos.kinds import Kind
from harness.chaos.plan import Plan
from harness.chaos.shrink import shrink
from harness.chaos.workloads import Workload
from harness.errors import HarnessError, NodeFailure, UsageError

Say = Callable[[str], None]
_JUDGED = "judgment.json"
_DONE = "done"
"""Marks a run without faults that has succeeded."""


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
    if done.state.run is None:
        raise NodeFailure(
            f"the run never began (exit code {done.code})", help=f"see {folder / 'output.txt'}"
        )
    compare = without_faults(plan, folder.parent, say) if calm and done.code == 0 else None
    judgment = judge(done, compare)
    (folder / "plan.toml").write_text(plans.text(plan), encoding="utf-8")
    (folder / _JUDGED).write_text(json.dumps(as_dict(judgment), indent=1) + "\n")
    return judgment


def without_faults(plan: Plan, out: Path, say: Say) -> Path:
    """Where the same run undisturbed wrote; made once for each command line in `out`.

    Raises NodeFailure when it fails.
    """
    one = plan.workload
    key = hashlib.sha256(repr(one).encode()).hexdigest()[:12]
    folder = out / f"calm-{one.name}-{key}"
    if not (folder / _DONE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        say(f"the same without faults: {folder}")
        calm = execute(dataclasses.replace(plan, faults=()), folder)
        if calm.code != 0:
            raise NodeFailure(
                f"the run without faults ended with exit code {calm.code}",
                help=f"see {folder / 'output.txt'}",
            )
        (folder / _DONE).touch()
    return folder / "work"


def as_dict(judgment: Judgment) -> dict[str, Any]:
    """A judgment as JSON has it."""
    found = dataclasses.asdict(judgment)
    return {**found, "right": judgment.right, "wrong": judgment.wrong()}


@dataclass(slots=True, kw_only=True)
class Cell:
    """One run of a campaign. `error` says why there is no judgment."""

    plan: Plan
    judgment: Judgment | None = None
    error: str = ""

    @property
    def kind(self) -> str:
        """Of the fault; the plan's own name where it has several."""
        faults = self.plan.faults
        name = self.plan.name.removesuffix(f"-{self.plan.workload.name}")
        return faults[0].fault.kind if len(faults) == 1 else name

    @property
    def area(self) -> str:
        return str(kinds.find(self.kind).area) if self.kind in kinds.names() else "combined"

    @property
    def right(self) -> bool:
        return self.judgment is not None and self.judgment.right

    def wrong(self) -> list[str]:
        return [self.error] if self.judgment is None else self.judgment.wrong()


def matrix(
    chosen: Sequence[Kind], workloads: Sequence[Workload], ranks: Sequence[int], seed: int
) -> list[Plan]:
    """A plan for each kind that fits a workload and each rank of it; for what is done to a node,
    and for what says nothing of ranks, one."""
    found = []
    for one in workloads:
        mine = ranks or spread(one.world_size)
        for kind in (kind for kind in chosen if plans.fitting(kind, one)):
            able = plans.able(kind, one)
            targets = mine[:1] if kind.on_node else [r for r in mine if r in able] or able[:1]
            found += [plans.single(kind, one, rank, seed) for rank in targets]
    return found


def spread(world_size: int) -> list[int]:
    """Three ranks: the first, one in the middle, the last."""
    return sorted({0, world_size // 2, world_size - 1})


def soak(workloads: Sequence[Workload], faults: int, seed: int) -> Iterator[Plan]:
    """Plans without end, each drawn from a seed of its own."""
    for number in itertools.count(seed):
        yield plans.drawn(workloads[number % len(workloads)], faults, number)


def campaign(
    given: Iterable[Plan], out: Path, *, seconds: float | None = None, tries: int = 0, say: Say
) -> list[Cell]:
    """Carry out `given` until none is left or `seconds` have gone; what is judged in `out` already
    is not done again. Failing plans are written to `out`/failing, each shrunk with at most `tries`
    runs. Ctrl-C ends it with what there is."""
    cells: list[Cell] = []
    ends = None if seconds is None else time.monotonic() + seconds
    try:
        for plan in given:
            earlier = _earlier(plan, out)
            if earlier is not None:
                cells.append(earlier)
                continue
            if ends is not None and time.monotonic() >= ends:
                if isinstance(given, Sequence):
                    continue  # what comes later may be judged already
                break
            cells.append(_cell(plan, out, say))
            if not cells[-1].right:
                keep_failing(cells[-1], out, tries, say)
    except KeyboardInterrupt:
        if not cells:
            raise
        say("interrupted: this is what was done until now")
    return cells


def _earlier(plan: Plan, out: Path) -> Cell | None:
    """What an earlier campaign in `out` found for this very plan; the newest, where several did."""
    for folder in sorted(out.glob(f"{plan.name}*"), key=lambda each: (len(each.name), each.name)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UsageError):
            if plans.read(folder / "plan.toml") == plan:
                return Cell(
                    plan=plan, judgment=from_dict(json.loads((folder / _JUDGED).read_text()))
                )
    return None


def _cell(plan: Plan, out: Path, say: Say) -> Cell:
    cell = Cell(plan=plan)
    for _ in range(2):  # a machine that is too busy to start a run says nothing about the plan
        try:
            cell.judgment = carry_out(plan, fresh(out, plan.name), say=lambda text: None)
            break
        except NodeFailure as error:
            cell.error = error.message
        except HarnessError as error:
            cell.error = error.message
            break
    said = "right" if cell.right else f"WRONG {'; '.join(cell.wrong())}"
    say(f"{plan.name}: {said}")
    return cell


def keep_failing(cell: Cell, out: Path, tries: int, say: Say) -> Path:
    """Write the smallest plan that is known to fail in the same way; where."""
    wrong = failing(cell)

    def fails(plan: Plan) -> bool:
        return failing(_cell(plan, out / "shrinking", say)) == wrong

    small = shrink(cell.plan, fails, tries)
    folder = out / "failing"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.plan.name}.toml"
    path.write_text(plans.text(small), encoding="utf-8")
    return path


def failing(cell: Cell) -> frozenset[str]:
    """The questions that were answered wrongly."""
    if cell.judgment is None:
        return frozenset({cell.error})
    return frozenset(check.name for check in cell.judgment.checks if check.ok is False)
