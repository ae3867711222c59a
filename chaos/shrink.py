"""A failing plan made small: fewer faults, fewer conditions, fewer steps, as long as it fails."""

import dataclasses
from collections.abc import Callable, Iterator

from harness.chaos.plan import Plan

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, tries: int) -> Plan:
    """The smallest plan found with at most `tries` runs that fails as `plan` does."""
    while tries > 0:
        for smaller in _smaller(plan):
            tries -= 1
            if fails(smaller):
                plan = smaller
                break
            if tries <= 0:
                return plan
        else:
            return plan
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are simpler by one thing, the greatest simplification first."""
    faults = plan.faults
    if len(faults) > 1:
        for number in range(len(faults)):
            yield dataclasses.replace(plan, faults=(*faults[:number], *faults[number + 1 :]))
    for number, planned in enumerate(faults):
        plainer = [dataclasses.replace(planned, after="")] if planned.after else []
        fault = planned.fault
        for simpler in (
            dataclasses.replace(fault, phase=""),
            dataclasses.replace(fault, attempt=None),
            dataclasses.replace(fault, seq_id=None),
            dataclasses.replace(fault, times=1),
            dataclasses.replace(fault, parameters={}),
        ):
            if simpler != fault:
                plainer.append(dataclasses.replace(planned, fault=simpler))
        for one in plainer:
            yield dataclasses.replace(plan, faults=(*faults[:number], one, *faults[number + 1 :]))
    last = max((planned.fault.step or 0 for planned in faults), default=0)
    every = plan.workload.every
    shorter = last + 2 * every
    if 0 < shorter < plan.workload.steps:
        yield dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, steps=shorter))
