"""Suspecting a stall and looking at it: evidence, and a verdict only when it shows one.

Suspicion comes from progress against what the attempt has shown so far; by itself it changes
nothing and blames nobody. Of thousands of ranks few are looked at first, and the others where these
do not show enough.
"""

from harness import events as e
from harness import orders as o
from harness.diagnosis.hang import judge_look, nodes_to_ask, suspect_at_ns
from harness.policy import Policy
from harness.recovery.ending import Decision, next_collection, next_id
from harness.recovery.remedy import incident_of
from harness.state import AttemptState, Collection, RunState

_THOUSANDS = 1000
_MOST = ((64, 64), (_THOUSANDS, 16))
_LATE_LOOKS, _MOST_BUDGETS = 3, 4
"""Looks whose time tells how long the next one may take, on a machine that gives its processes
little; and the most, in budgets."""
_MOST_AT_AN_END = 256
_MOST_OF_THOUSANDS = 8
"""Entries of each rank's records, in worlds of so many ranks: thousands of ranks fill the journal
with every look, and a verdict waits until all of it has been read."""


def watch(
    state: RunState, attempt: AttemptState, reachable: set[int], now_ns: int
) -> list[Decision]:
    """Look at the ranks when they seem to stand still, and say what was seen."""
    assert state.run is not None
    policy = state.run.policy
    look = open_look(state, attempt)
    if look is not None:
        if now_ns < _answered_by_ns(state, look) and not look.waiting.isdisjoint(reachable):
            return []
        if now_ns < _judged_again_ns(attempt, look):
            return []
        unasked = reachable - look.asked
        found = judge_look(state, look, now_ns, unasked)
        if found is None:
            return _ask(unasked, attempt, policy, look.index, look.incident)
        if isinstance(found, e.StallLooked):
            return [found]
        return [e.IncidentOpened(incident=incident_of(state, found, look.incident, now_ns))]
    at_ns = suspect_at_ns(attempt, policy)
    if at_ns is None or now_ns < at_ns or not reachable:
        return []
    first = reachable
    if in_thousands(attempt.world_size):
        apart_ns = int(policy.reports_apart(len(attempt.nodes)) * 1e9)
        first = nodes_to_ask(attempt, reachable, attempt.stillest_ns + 2 * apart_ns)
    return _ask(first, attempt, policy, next_collection(state), next_id(state))


def _ask(
    nodes: set[int], attempt: AttemptState, policy: Policy, collection: int, incident: int
) -> list[Decision]:
    ask = o.CollectEvidence(
        collection=collection,
        incident=incident,
        attempt=attempt.index,
        why="no progress is seen",
        apart=policy.looks_apart,
        last_resort=False,
        most=most_entries(attempt.world_size),
        suspicion=True,
        together=in_thousands(attempt.world_size),
    )
    return [e.OrderGiven(node_rank=node, order=ask) for node in sorted(nodes)]


def most_entries(world_size: int) -> int:
    """Of a rank's records that a look asks for."""
    return next((most for ranks, most in _MOST if world_size <= ranks), _MOST_OF_THOUSANDS)


def most_at_an_end(world_size: int) -> int:
    """The same once ranks have failed: asked for once, so they may be more."""
    return min(_MOST_AT_AN_END, 4 * most_entries(world_size))


def in_thousands(world_size: int) -> bool:
    """Whether few are asked at first, and the ranks of a node answer together."""
    return world_size > _THOUSANDS


def watch_by_ns(state: RunState, attempt: AttemptState) -> list[int]:
    """Times at which `watch` may have something to do."""
    assert state.run is not None
    look = open_look(state, attempt)
    if look is not None:
        return [_answered_by_ns(state, look), _judged_again_ns(attempt, look)]
    at_ns = suspect_at_ns(attempt, state.run.policy)
    return [] if at_ns is None else [at_ns]


def open_look(state: RunState, attempt: AttemptState) -> Collection | None:
    """The newest look at a suspected stall, when nothing has come of it yet."""
    look = state.collections[-1] if state.collections else None
    if look is None or not look.suspicion or look.attempt != attempt.index:
        return None
    opened = any(incident.id == look.incident for incident in state.incidents)
    return None if opened or look.index <= attempt.looked else look


def _answered_by_ns(state: RunState, look: Collection) -> int:
    """When evidence is no longer waited for: after the budget, or where it came too late the last
    time, some longer than it took then."""
    assert state.run is not None
    budget_ns = int(state.run.policy.evidence_budget * 1e9)
    took_ns = max(
        (each.took_ns for each in state.collections[-1 - _LATE_LOOKS : -1] if each.suspicion),
        default=0,
    )
    most_ns = budget_ns * _MOST_BUDGETS
    return look.asked_ns + max(budget_ns, min(took_ns + took_ns // 2, most_ns))


def _judged_again_ns(attempt: AttemptState, look: Collection) -> int:
    """When this look, that lacked nothing but time, is judged once more; 0 when it was not yet."""
    said = None if attempt.stall is None else attempt.stall.look
    return said.again_ns if said is not None and said.collection == look.index else 0
