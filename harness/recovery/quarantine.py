"""Strikes: hosts on which ranks fail for reasons that lie in the machine, and leaving them out."""

from harness import events as e
from harness.faults import ANY
from harness.incidents import Incident
from harness.membership import CORRUPTION
from harness.recovery.ending import STORE_NODE, Decision, notify
from harness.recovery.members import members
from harness.state import AttemptState, RunState

_OF_THE_HOST = frozenset({"device_fault", "node_lost", "rank_frozen", "rank_stuck_in_io"})
_OF_THE_DEVICE = CORRUPTION
"""The one failure that leaves no other trace: it counts in runs of one node as well."""
_WHEN_REPEATED = frozenset({"killed_by_signal"})
"""A single one may come from anywhere; on the same host again it has something to do with it."""


def strikes(state: RunState) -> list[Decision]:
    """Strikes for the newest incident that are not given yet. A run of one node has nobody to leave
    out: it gives them for corruptions only, so that later runs know."""
    if state.run is None or not state.incidents:
        return []
    incident, run = state.incidents[-1], state.run.run
    if state.run.nnodes == 1 and incident.verdict.verdict != _OF_THE_DEVICE:
        return []
    given = {(s.host, s.incident) for s in state.strikes if s.run == run}
    return [
        e.HostStruck(
            host=host,
            node_rank=node,
            incident=incident.id,
            why=incident.verdict.verdict,
            local_ranks=_places(state, incident, host),
        )
        for host, node in sorted(_blamed(state, incident).items())
        if (host, incident.id) not in given
    ]


def _places(state: RunState, incident: Incident, host: str) -> tuple[int, ...]:
    """Local ranks of the first-failing ranks there: which device it was, on a host of several."""
    verdict = incident.verdict
    if verdict.verdict != _OF_THE_DEVICE:
        return ()
    attempt = state.attempts[verdict.attempt]
    found = []
    for number in verdict.first_failing:
        rank = attempt.ranks.get(number)
        if rank is not None and attempt.nodes[rank.node_rank].host == host:
            found.append(rank.local_rank)
    return tuple(sorted(found))


def quarantine_notices(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Say, once each, which hosts are left out and which stay only because nobody else is there."""
    told: list[Decision] = []
    assert state.run is not None
    struck_out = state.struck_out
    if not struck_out:
        return []
    taking_part = set(members(state, state.run))
    for node in state.nodes.values():
        if node.host not in struck_out or not node.connected:
            continue
        here = node.node_rank in attempt.nodes and node.node_rank not in attempt.lost_nodes
        if here != (node.node_rank in taking_part):
            continue  # it is about to change
        of = ", ".join(strike.why for strike in state.strikes_by_host[node.host])
        what = "stays" if here else "is left out"
        why = " because there are too few others" if here else ""
        if here and node.node_rank == STORE_NODE:
            why = " because it holds the controller"
        mark = f"harness: {node.host} (node {node.node_rank}) {what}"
        text = f"{mark}{why}; it failed before: {of}"
        told += notify(state, [STORE_NODE], mark, lambda text=text: text)  # type: ignore[misc]
    return told


def _blamed(state: RunState, incident: Incident) -> dict[str, int]:
    """Hosts in which the cause of `incident` lies, each with one of its nodes."""
    verdict = incident.verdict
    hosts = _hosts(state, incident)
    if verdict.verdict in _OF_THE_HOST:
        return hosts
    if verdict.verdict == _OF_THE_DEVICE:
        return {} if _same_again(state, incident) else hosts
    if verdict.verdict not in _WHEN_REPEATED:
        return {}
    earlier = [i for i in state.incidents if i.id < incident.id]
    again = [_hosts(state, i) for i in earlier if i.verdict.verdict == verdict.verdict]
    return {host: node for host, node in hosts.items() if any(host in known for known in again)}


def _same_again(state: RunState, incident: Incident) -> bool:
    """Whether the run has come to the very same at the same step: that is what a program does."""
    mine = incident.verdict
    return any(
        (other.verdict.signature, other.verdict.step, other.verdict.first_failing)
        == (mine.signature, mine.step, mine.first_failing)
        for other in state.incidents
        if other.id < incident.id
    )


def _hosts(state: RunState, incident: Incident) -> dict[str, int]:
    """Where its first-failing ranks were, but for those to which harm was done on purpose."""
    verdict = incident.verdict
    if not 0 <= verdict.attempt < len(state.attempts):
        return {}
    attempt = state.attempts[verdict.attempt]
    harmed = {fault.fault.rank for fault in state.faults}
    ranks = (attempt.ranks.get(rank) for rank in verdict.first_failing if rank not in harmed)
    nodes = {rank.node_rank for rank in ranks if rank is not None}
    nodes -= {max(fault.fault.node, 0) for fault in state.faults if fault.fault.rank == ANY}
    return {attempt.nodes[node].host: node for node in sorted(nodes) if node in attempt.nodes}
