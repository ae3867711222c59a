"""Plans with two faults, of which one comes at a bad moment for the other."""

import dataclasses

from harness.chaos.plan import Guard, Plan, Planned
from harness.chaos.workloads import Workload
from harness.faults import Fault


def plans(one: Workload, seed: int) -> list[Plan]:
    """All of them, on one workload with three ranks or more."""
    step, first, last = 2 * one.every + 2, 1, one.world_size - 1
    stopped = Planned(fault=Fault(kind="stop", rank=first, step=step))
    killed = Planned(fault=Fault(kind="kill", rank=first, step=step))
    controller = Fault(kind="controller_kill", node=0)
    found: dict[str, tuple[Planned, ...]] = {
        "two_ranks": (killed, _kill(last, step=step)),
        "during_diagnosis": (stopped, _kill(last, after="suspicion")),
        "during_restart": (killed, _kill(last, phase="init", attempt=1)),
        "after_restart": (killed, _kill(last, step=step + 1, attempt=1)),
        "controller_in_incident": (stopped, Planned(fault=controller, after="suspicion")),
        "controller_and_rank": (killed, Planned(fault=controller, after="incident")),
    }
    if "manifests" in one.has:
        found["during_checkpoint"] = (_kill(first, step=one.every * 2 - 1, phase="checkpoint"),)
    if one.nodes > 1:
        agent = Planned(fault=Fault(kind="agent_kill", node=one.nodes - 1), after="incident")
        found["agent_and_rank"] = (killed, agent)
    workload = dataclasses.replace(one, steps=max(one.steps, step + 4 * one.every))
    return [
        Plan(
            name=f"{name}-{one.name}",
            workload=workload,
            faults=faults,
            guard=Guard(ranks=2),
            seed=seed,
        )
        for name, faults in found.items()
    ]


def _kill(
    rank: int, *, step: int | None = None, phase: str = "", attempt: int | None = None,
    after: str = "",
) -> Planned:  # fmt: skip
    fault = Fault(kind="kill", rank=rank, step=step, phase=phase, attempt=attempt)
    return Planned(fault=fault, after=after)
