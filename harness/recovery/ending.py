"""Telling people what happened, closing incidents and ending a run; and what a decision is."""

from collections.abc import Callable, Iterable

from harness import events as e
from harness import orders as o
from harness.errors import ExitCode, NodeFailure
from harness.incidents import Incident, Outcome
from harness.report import card
from harness.state import RunState

Decision = (
    e.OrderGiven
    | e.StallLooked
    | e.AttemptStarted
    | e.IncidentOpened
    | e.IncidentClosed
    | e.IncidentSettled
    | e.RunEnded
    | e.AgentLost
    | e.NodesAwaited
    | e.Regrouping
    | e.HostStruck
)

STORE_NODE = 0
"""The node that hosts the rendezvous store and shows the run's messages."""


def connected(state: RunState, node_rank: int) -> bool:
    node = state.nodes.get(node_rank)
    return node is not None and node.connected


def next_id(state: RunState) -> int:
    """The number of the next incident. Evidence of a failure keeps its own even when no incident
    comes of it; that of a mere suspicion is written over."""
    kept = (c.incident for c in state.collections if not c.suspicion)
    return max([0, *kept, *(incident.id for incident in state.incidents)]) + 1


def next_collection(state: RunState) -> int:
    """The index of the next round of evidence; never used twice."""
    return max((collection.index for collection in state.collections), default=-1) + 1


def show_card(state: RunState, incident: Incident) -> list[Decision]:
    """The card on the head's screen and on that of the node where it began, once."""
    nodes = {STORE_NODE}
    attempt = state.attempt
    if attempt is not None and attempt.index == incident.verdict.attempt:
        first = incident.verdict.first_failing[:1]
        nodes |= {attempt.ranks[rank].node_rank for rank in first if rank in attempt.ranks}
    return notify(state, nodes, f"incidents/{incident.id:03d}/", lambda: card(state, incident))


def notify(
    state: RunState, nodes: Iterable[int], mark: str, text: Callable[[], str]
) -> list[Decision]:
    """`text()` on the screens of `nodes`, once for each `mark`. Journals of older versions have the
    mark in the text alone, where a narrow card may have cut it off."""
    if mark in state.told or any(mark in notice for notice in state.notices):
        return []
    there = sorted(node for node in nodes if connected(state, node))
    if not there:
        there = sorted(node.node_rank for node in state.nodes.values() if node.connected)[:1]
    if not there:
        return []
    order = o.Notify(text=text(), about=mark)
    return [e.OrderGiven(node_rank=node, order=order) for node in there]


def close_open(state: RunState, outcome: Outcome) -> list[Decision]:
    return [
        e.IncidentClosed(incident_id=incident.id, outcome=outcome, lost_steps=incident.lost_steps)
        for incident in state.incidents
        if incident.outcome == "open"
    ]


def end(state: RunState, outcome: str, exit_code: int, reason: str) -> list[Decision]:
    """The run is over. An incident that ended it is closed as stopped; one that a restart was
    to cure, as recovered or failed, as the run did."""
    closed: list[Decision] = []
    for incident in state.incidents:
        if incident.outcome != "open":
            continue
        result: Outcome = "recovered" if outcome == "succeeded" else "failed"
        if outcome == "stopped" or incident.action == "stop":
            result = "stopped"
        closed.append(
            e.IncidentClosed(
                incident_id=incident.id, outcome=result, lost_steps=incident.lost_steps
            )
        )
    return [*closed, e.RunEnded(outcome=outcome, exit_code=int(exit_code), reason=reason)]


def fail(state: RunState, exit_code: ExitCode, what: str, help: str) -> list[Decision]:
    """End for a reason that no incident tells: say it on the head's screen first."""
    text = f"error[{NodeFailure.code}]: {what}\n  help: {help}"
    return [
        *notify(state, [STORE_NODE], text, lambda: text),
        *end(state, "failed", exit_code, what),
    ]


def stop_asked(state: RunState) -> o.StopRun | None:
    """The wish to end a run that has no workers: to stop or to preempt it."""
    if state.stop is None and state.preempt is not None:
        return o.StopRun(why=state.preempt.why, signal=15)
    return state.stop


def end_stopped(state: RunState, stop: o.StopRun) -> list[Decision]:
    """The run was asked to stop: 128 + n for signal n, as shells say it, 143 for a plain wish."""
    code = 128 + stop.signal if stop.signal else int(ExitCode.TERMINATED)
    return end(state, "stopped", code, stop.why)


def shut_down(state: RunState, ended: e.RunEnded) -> list[Decision]:
    order = o.Shutdown(exit_code=ended.exit_code, reason=ended.reason)
    return [
        e.OrderGiven(node_rank=node, order=order)
        for node in sorted(state.nodes.keys() - state.shut_down)
    ]
