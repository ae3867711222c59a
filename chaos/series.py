"""Many faults in one run, one after the other: each when the run has gone on after the one before.

A run of its own for each fault costs more in starting than in being harmed. In a series each fault
meets processes that are new (where the one before was answered by a restart), and the end is
compared with one run without faults. What must stop a run, or goes on in it for
long until it is told, is done alone.
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from harness.chaos.kinds import find
from harness.chaos.plan import Guard, Plan, Planned
from harness.chaos.workloads import Workload
from harness.faults import ANY

_RESTARTS = ("--max-restarts", "1000", "--same-failure-limit", "1000")
_UNTOLD, _SEEN_LATE, _ROOM = 30, 10, 5
"""Steps that a run goes on after a fault that nothing comes of, which takes some seconds to be sure
of, and after one that is seen in the numbers; and what is added to all of them."""
_TELLS_STEPS = "mesh"
"""What workloads have that tell their steps, which go on from a checkpoint; in others each rank
counts from its start."""


def joined(singles: Sequence[Plan], length: int, seed: int) -> Iterator[Plan]:
    """`singles`, each with one fault, as runs of up to `length` faults; those that are done
    alone stay as they are."""
    runs: list[list[Plan]] = []
    alone: list[list[Plan]] = []
    for name in dict.fromkeys(plan.workload.name for plan in singles):
        mine = [plan for plan in singles if plan.workload.name == name]
        going = _mixed([plan for plan in mine if not find(_kind(plan)).alone])
        chunks = [going[first : first + length] for first in range(0, len(going), length)]
        steps = max((_steps(chunk) for chunk in chunks), default=0)
        runs.append([_one(chunk, steps, number, seed) for number, chunk in enumerate(chunks)])
        alone.append(_mixed([plan for plan in mine if find(_kind(plan)).alone]))
    # Workloads in turn: a campaign that is cut short has seen all of them.
    for found in (runs, alone):
        yield from (plan for turn in zip_longest(*found) for plan in turn if plan is not None)


def _kind(plan: Plan) -> str:
    return plan.faults[0].fault.kind


def _mixed(singles: Sequence[Plan]) -> list[Plan]:
    """Kinds and ranks in turn, so that no failure follows one like it."""
    kinds = list(dict.fromkeys(_kind(plan) for plan in singles))
    by_kind = {kind: [plan for plan in singles if _kind(plan) == kind] for kind in kinds}
    found = []
    for turn in range(max((len(plans) for plans in by_kind.values()), default=0)):
        for place, kind in enumerate(kinds):
            plans = by_kind[kind]
            if turn < len(plans):
                found.append(plans[(turn + place) % len(plans)])
    return found


def _steps(chunk: Sequence[Plan]) -> int:
    """Enough that the run is not over before the last fault has been told."""
    one = chunk[0].workload
    steps = _step(one, len(chunk), 3) + 2 * one.every + _ROOM
    for plan in chunk:
        kind = find(_kind(plan))
        steps += _UNTOLD if not kind.verdicts else 0
        steps += _SEEN_LATE if kind.steps else 0
        # In the others each restart gets the run past one more checkpoint.
        steps += 0 if _TELLS_STEPS in one.has or not kind.verdicts else one.every
    return steps


def _step(one: Workload, number: int, drawn: int) -> int:
    """Of the fault of that number; all come after a checkpoint, and each after the one before."""
    return one.every + drawn + (number if _TELLS_STEPS in one.has else 0)


def _one(chunk: Sequence[Plan], steps: int, number: int, seed: int) -> Plan:
    one: Workload = chunk[0].workload
    draw = random.Random(f"{one.name} {number} {seed}")
    faults = tuple(
        _later(plan.faults[0], _step(one, at, draw.randrange(1, 4)))
        for at, plan in enumerate(chunk)
    )
    ranks = {planned.fault.rank for planned in faults} - {ANY}
    return Plan(
        name=f"series{number}-{one.name}",
        workload=dataclasses.replace(one, steps=steps, options=(*one.options, *_RESTARTS)),
        faults=faults,
        guard=Guard(ranks=max(2, len(ranks)), faults=max(8, len(faults))),
        seed=seed,
    )


def _later(planned: Planned, step: int) -> Planned:
    """The fault after the one before it."""
    fault = planned.fault
    at = None if fault.step is None else step
    return Planned(fault=dataclasses.replace(fault, step=at), after="before")
