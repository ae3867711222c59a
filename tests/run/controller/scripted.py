"""A real controller process whose decisions are scripted, so that a test can ask for orders.

Once all nodes have joined, each has got the orders: one Notify, then one more for every accepted
Inject; an accepted StopRun ends the run. A rank that died of a signal opens an incident.
"""

import sys
from pathlib import Path

from harness import events as e
from harness.controller.process import Options, run_controller
from harness.incidents import Incident, Verdict
from harness.orders import Command, Inject, Notify, Order, Shutdown, StopRun
from harness.state import RunState


class ScriptedDecider:
    def plan(self, state: RunState, now_ns: int) -> list[e.Event]:
        if state.run is None or state.ended is not None or len(state.nodes) < state.run.nnodes:
            return []
        if state.stop is not None:
            shutdown = Shutdown(exit_code=130, reason=state.stop.why)
            orders = [e.OrderGiven(node_rank=n, order=shutdown) for n in state.nodes]
            return [e.RunEnded(outcome="stopped", exit_code=130, reason=state.stop.why), *orders]
        died = self._incident(state)
        if died is not None:
            return [e.IncidentOpened(incident=died)]
        wanted = 1 + sum(c.accepted and isinstance(c.command, Inject) for c in state.commands)
        for node_rank in state.nodes:
            given = len(state.orders.get(node_rank, ()))
            if given < wanted:
                order: Order = Notify(text=f"order {given + 1} for node {node_rank}")
                return [e.OrderGiven(node_rank=node_rank, order=order)]
        return []

    def next_wake_ns(self, state: RunState, now_ns: int) -> int | None:
        return None

    def accept(self, state: RunState, command: Command) -> tuple[bool, str]:
        if isinstance(command, StopRun) and state.stop is not None:
            return False, "it is stopping already"
        return True, "as asked"

    def _incident(self, state: RunState) -> Incident | None:
        attempt = state.attempt
        died = [r.rank for r in attempt.ranks.values() if r.exited] if attempt else []
        if not died or state.incidents or attempt is None:
            return None
        verdict = Verdict(
            verdict="killed_by_signal",
            first_failing=tuple(died),
            victims=(),
            innocent=(),
            cause="signal",
            reason="it was",
            confidence="proven",
            onset_ns=0,
            attempt=attempt.index,
            step=attempt.step,
            signature="",
        )
        return Incident(id=1, verdict=verdict, action="none", action_reason="", detected_ns=0)


class PlainReporter:
    def incident_json(self, state: RunState, incident: Incident) -> dict[str, object]:
        return {"id": incident.id, "class": incident.verdict.verdict}

    def card(self, state: RunState, incident: Incident) -> str:
        return f"{incident.verdict.verdict}: rank {incident.verdict.first_failing[0]}"


if __name__ == "__main__":
    run_dir, bind, ready_fd = sys.argv[1:4]
    options = Options(run_dir=Path(run_dir), bind=bind, ready_fd=int(ready_fd))
    sys.exit(run_controller(options, ScriptedDecider(), PlainReporter()))
