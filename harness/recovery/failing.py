"""Ranks have failed or a node is lost: evidence of what is left, and a verdict.

Of thousands of ranks few are asked first, and the others where these do not explain the failure.
"""

from heapq import nsmallest

from harness import events as e
from harness import orders as o
from harness.diagnosis import conclude, diagnose
from harness.diagnosis.hang import nodes_to_ask
from harness.incidents import Verdict
from harness.recovery.ending import Decision, close_open, next_collection, next_id
from harness.recovery.remedy import incident_of
from harness.recovery.watching import in_thousands, most_at_an_end
from harness.state import AttemptState, Collection, RankState, RunState
from harness.topology import ranks_name, ranks_text

_FEW_RANKS = 32
"""Of those that failed, the first are asked; the others mostly died of it."""
_OF_ITSELF = frozenset(
    {"exception", "killed_by_signal", "out_of_memory", "device_fault", "dataloader_worker_died"}
)
"""What a rank says of itself, or the system of it."""
_BY_THE_LIBRARY = "torch/distributed/"
_SIGABRT = 6


def judge_failure(
    state: RunState, attempt: AttemptState, reachable: set[int], now_ns: int
) -> list[Decision]:
    """Ask, wait for the answers, and open an incident."""
    collection = open_collection(state, attempt)
    asked = set() if collection is None else collection.asked
    ask = o.CollectEvidence(
        collection=next_collection(state) if collection is None else collection.index,
        incident=next_id(state) if collection is None else collection.incident,
        attempt=attempt.index,
        why=_trouble_text(attempt),
        most=most_at_an_end(attempt.world_size),
        together=in_thousands(attempt.world_size),
    )
    if wanted := _wanted(attempt, reachable, asked):
        return _asked(wanted, ask)
    if (
        collection is not None
        and now_ns < evidence_by_ns(state, collection)
        and not collection.waiting.isdisjoint(reachable)
    ):
        return []
    unasked = reachable - asked
    verdict = conclude(state, diagnose(state, now_ns), now_ns, unasked)
    if unasked and not (verdict is not None and _explains_itself(attempt, verdict)):
        return _asked(unasked, ask)
    if verdict is None:
        return []
    return [
        *close_open(state, "failed"),
        e.IncidentOpened(incident=incident_of(state, verdict, ask.incident, now_ns)),
    ]


def open_collection(state: RunState, attempt: AttemptState) -> Collection | None:
    """The evidence being taken for the incident to come."""
    taken = {incident.id for incident in state.incidents}
    for collection in reversed(state.collections):
        if collection.suspicion:
            continue
        if collection.attempt == attempt.index and collection.incident not in taken:
            return collection
    return None


def evidence_by_ns(state: RunState, collection: Collection) -> int:
    """When evidence is no longer waited for."""
    assert state.run is not None
    return collection.asked_ns + int(state.run.policy.evidence_budget * 1e9)


def _asked(nodes: set[int], ask: o.CollectEvidence) -> list[Decision]:
    return [e.OrderGiven(node_rank=node, order=ask) for node in sorted(nodes)]


def _wanted(attempt: AttemptState, reachable: set[int], asked: set[int]) -> set[int]:
    """Nodes that are to be asked and were not yet."""
    if not in_thousands(attempt.world_size):
        return reachable - asked
    ranks = nsmallest(_FEW_RANKS, (attempt.ranks[rank] for rank in attempt.failed), key=_failed_ns)
    failed = {rank.node_rank for rank in ranks} & reachable
    return (failed if asked else failed | nodes_to_ask(attempt, reachable)) - asked


def _failed_ns(rank: RankState) -> int:
    """When it failed, as it says itself or its agent."""
    if rank.raised is not None:
        return rank.raised.raised_ns
    return 0 if rank.exited is None else rank.exited.exited_ns


def _explains_itself(attempt: AttemptState, verdict: Verdict) -> bool:
    """Whether nothing that the others show could make another verdict of it."""
    if verdict.verdict == "node_lost":
        return True
    ranks = [attempt.ranks[rank] for rank in verdict.first_failing if rank in attempt.ranks]
    return (
        verdict.verdict in _OF_ITSELF
        and verdict.confidence == "proven"
        and not any(map(_by_the_library, ranks))
    )


def _by_the_library(rank: RankState) -> bool:
    """Whether it failed within a collective, of which others may be the cause."""
    if rank.raised is not None and _BY_THE_LIBRARY in rank.raised.traceback:
        return True
    return rank.exited is not None and rank.exited.signal == _SIGABRT


def _trouble_text(attempt: AttemptState) -> str:
    if attempt.lost_nodes:
        return f"node {ranks_text(sorted(attempt.lost_nodes))} was lost"
    return f"{ranks_name(sorted(attempt.failed))} failed"
