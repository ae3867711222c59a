"""Folding what is heard of nodes: who joins, who is lost, how they launch, whose host is struck."""

from dataclasses import replace

from harness import events as e
from harness.membership import Strike
from harness.state.rerun import applied
from harness.state.words import NodeState, RunState


def joined(state: RunState, event: e.AgentJoined) -> None:
    node = state.nodes.get(event.node_rank)
    if node is not None and node.pid == event.pid and node.host == event.host:
        node.connected, node.lost_why, node.seen_ns = True, "", state.last_ns
        return
    state.nodes[event.node_rank] = NodeState(
        node_rank=event.node_rank,
        host=event.host,
        pid=event.pid,
        local_world_size=event.local_world_size,
        joined_ns=state.last_ns,
        seen_ns=state.last_ns,
    )


def lost(state: RunState, stamp: e.Stamp, event: e.AgentLost) -> None:
    node = state.nodes.get(event.node_rank)
    if node is None:
        return
    node.connected = False
    node.lost_why = event.why
    state.memory.pop(event.node_rank, None)
    state.memory_addresses.pop(event.node_rank, None)
    attempt = state.attempt
    if attempt is None or state.stage not in ("running", "judging", "stopping"):
        return
    placed = attempt.nodes.get(event.node_rank)
    if placed is None:
        return
    attempt.lost_nodes.setdefault(event.node_rank, event.why)
    attempt.lost_ns = attempt.lost_ns or stamp.wall_ns
    for rank in placed.ranks:
        if rank not in attempt.gone:
            attempt.ranks[rank].status = "exited"
            attempt.gone.add(rank)
    if attempt.trouble_ns == 0:
        attempt.trouble_ns = attempt.trouble_seen_ns = stamp.wall_ns


def launching(state: RunState, node_rank: int, how: str) -> None:
    node = state.nodes.get(node_rank)
    if node is not None:
        node.launching = how


def struck(state: RunState, stamp: e.Stamp, event: e.HostStruck) -> None:
    run = "" if state.run is None else state.run.run
    strike = Strike(
        host=event.host, run=run, incident=event.incident, why=event.why, at_ns=stamp.wall_ns,
        local_ranks=event.local_ranks,
    )  # fmt: skip
    state.strikes.append(strike)


def settled(state: RunState, event: e.IncidentSettled) -> None:
    """More is known of an incident: hosts that it cleared lose the strike they got for it."""
    run = "" if state.run is None else state.run.run
    at = next((at for at, one in enumerate(state.incidents) if one.id == event.incident_id), None)
    if at is None:
        return
    incident = state.incidents[at] = applied(state.incidents[at], event)
    attempt = state.attempts[incident.verdict.attempt]
    blamed: dict[str, set[int]] = {}
    for rank in (attempt.ranks[number] for number in event.ranks if number in attempt.ranks):
        blamed.setdefault(attempt.nodes[rank.node_rank].host, set()).add(rank.local_rank)
    kept = []
    for strike in state.strikes:
        if (strike.run, strike.incident) == (run, event.incident_id):
            if strike.host not in blamed:
                continue
            places = sorted(blamed[strike.host].intersection(strike.local_ranks))
            kept.append(replace(strike, local_ranks=tuple(places)))
        else:
            kept.append(strike)
    state.strikes = kept


def unheard(state: RunState) -> None:
    """Nobody listened while there was no controller: silence counts from now."""
    for node in state.nodes.values():
        node.seen_ns = state.last_ns
