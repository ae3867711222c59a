"""The ranks' state in memory: who keeps copies for whom, which generation the next attempt goes on
from, and what is written to disk before it is lost."""

import re
from bisect import bisect_right

from harness import events as e
from harness import orders as o
from harness.errors import ExitCode
from harness.holdings import MemoryPlan, MemorySource
from harness.incidents import Incident
from harness.recovery.ending import STORE_NODE, Decision, connected, notify
from harness.recovery.members import enough, members
from harness.state import AttemptState, RunState
from harness.state.memory import Held, whole_generations
from harness.topology import ranks_name

_KEEP_SECONDS = 120.0
"""Longest wait for the nodes to write a generation."""
_DOUBTED = ("numeric",)
"""Families of verdicts after which nothing newer than a checkpoint is believed."""


def restorable(state: RunState, run: e.RunStarted) -> Held | None:
    """The generation that the next attempt is to go on from; None: from the disk.

    Only where every rank's own state is there, and the world is as large as it was.
    """
    attempt = state.attempt
    if attempt is None or not enough(state, run) or not _believed(state, attempt):
        return None
    ranks = sum(state.nodes[node].local_world_size for node in members(state, run))
    for held in whole_generations(state):
        if held.lost or held.world_size != ranks or held.step < _on_disk(state):
            continue
        return None if _in_vain(state, attempt, held) else held
    return None


def _believed(state: RunState, attempt: AttemptState) -> bool:
    """Whether nothing speaks against the numbers in memory."""
    incident = _ended_by(state, attempt)
    if incident is None:
        return True
    return incident.action != "rollback" and incident.verdict.family not in _DOUBTED


def _ended_by(state: RunState, attempt: AttemptState) -> Incident | None:
    for incident in reversed(state.incidents):
        decisive = incident.action in ("restart", "rollback", "stop")
        if decisive and incident.verdict.attempt == attempt.index:
            return incident
    return None


def _in_vain(state: RunState, attempt: AttemptState, held: Held) -> bool:
    """Whether the attempt went on from that very generation, and failed as the one before did."""
    if attempt.memory != (held.attempt, held.step) or attempt.index == 0:
        return False
    now = _ended_by(state, attempt)
    before = _ended_by(state, state.attempts[attempt.index - 1])
    if now is None or before is None:
        return False
    return now.verdict.signature == before.verdict.signature


def _on_disk(state: RunState) -> int:
    mark = state.newest_restore_point
    return -1 if mark is None else mark.step


# --- before it is lost -------------------------------------------------------------------------


def keep_memory(
    state: RunState, attempt: AttemptState, incident: Incident | None, now_ns: int, *, ends: bool
) -> list[Decision] | None:
    """Have the newest generation written as a checkpoint where nothing else would save it: the run
    `ends`, or its next attempt has another layout or has lost ranks' own state.

    Orders, an empty list while they are carried out, None when there is nothing (more) to do.
    """
    if attempt.keep_ordered:
        return _kept(state, attempt, now_ns)
    assert state.run is not None
    well = incident is not None and incident.exit_code == ExitCode.OK and ends
    if well or not _believed(state, attempt):
        return None
    if not ends and restorable(state, state.run) is not None:
        return None
    newer = [held for held in whole_generations(state) if held.step > _on_disk(state)]
    # A step or two more are not worth what the ranks kept for themselves.
    newest = next((held for held in newer if not held.lost), next(iter(newer), None))
    if newest is None:
        return None
    if not ends and _in_vain(state, attempt, newest):
        return None
    return _keep_orders(state.run, attempt, newest)


def _keep_orders(run: e.RunStarted, attempt: AttemptState, held: Held) -> list[Decision]:
    by_node: dict[int, list[int]] = {}
    for rank, node in sorted(held.where.items()):
        by_node.setdefault(node, []).append(rank)
    token = re.sub(r"\W", "_", f"{run.run}_{attempt.index}")
    return [
        e.OrderGiven(
            node_rank=node,
            order=o.KeepMemory(
                failed=attempt.index,
                attempt=held.attempt,
                step=held.step,
                ranks=tuple(ranks),
                world_size=held.world_size,
                token=token,
                lost=tuple(held.lost),
                twins=tuple(held.lost.values()),
            ),
        )
        for node, ranks in sorted(by_node.items())
    ]


def _kept(state: RunState, attempt: AttemptState, now_ns: int) -> list[Decision] | None:
    order = next(iter(attempt.keep_ordered.values()))
    failed = [kept.why for kept in attempt.kept.values() if kept.why]
    path = next((kept.path for kept in attempt.kept.values() if kept.path), "")
    waiting = [n for n in attempt.keep_ordered if connected(state, n) and n not in attempt.kept]
    if not failed and not path and waiting and now_ns < kept_by_ns(attempt)[0]:
        return []
    mark = f"memory of step {order.step}"
    why = failed[0] if failed else "not all nodes have written their part"
    lost = f", without what {ranks_name(order.lost)} kept apart" if order.lost else ""
    text = f"harness: {mark} is saved as {path}, not certified{lost}"
    if not path:
        text = f"harness: {mark} could not be saved: {why}"
    return notify(state, [STORE_NODE], f"{mark} of attempt {attempt.index}", lambda: text) or None


def kept_by_ns(attempt: AttemptState) -> list[int]:
    """When waiting for that ends."""
    if not attempt.keep_ordered_ns:
        return []
    return [attempt.keep_ordered_ns + int(_KEEP_SECONDS * 1e9)]


# --- who keeps what ----------------------------------------------------------------------------


def keepers(state: RunState, attempt: AttemptState) -> dict[int, int]:
    """By node of the attempt: the one that takes copies of its ranks' state, the next one in the
    row that is on another host; on the same host only where there is no other."""
    nodes = list(attempt.nodes)
    there = [at for at, node in enumerate(nodes) if node in state.memory_addresses]
    hosts = {node: _host(state, node) for node in nodes}
    found: dict[int, int] = {}
    for at, node in enumerate(nodes):
        first = bisect_right(there, at)
        for step in range(len(there)):
            other = nodes[there[(first + step) % len(there)]]
            if hosts[other] != hosts[node]:
                found[node] = other
                break
            if other != node:
                found.setdefault(node, other)
    return found


def _host(state: RunState, node: int) -> str:
    return state.nodes[node].host if node in state.nodes else ""


def memory_plans(state: RunState, attempt: AttemptState) -> dict[int, MemoryPlan]:
    """What the agent of each node does in the attempt that begins."""
    pairs = keepers(state, attempt)
    kept_for: dict[int, list[int]] = {}
    for node, keeper in pairs.items():
        kept_for.setdefault(keeper, []).append(node)
    held = _held(state, attempt)
    from_attempt, from_step = attempt.memory
    return {
        node: MemoryPlan(
            keeper=state.memory_addresses.get(pairs.get(node, -1), ""),
            keeps=tuple(r for other in kept_for.get(node, ()) for r in attempt.nodes[other].ranks),
            restore_attempt=from_attempt,
            restore_step=from_step,
            fetch=tuple(
                MemorySource(rank=rank, address=state.memory_addresses[place])
                for rank in attempt.nodes[node].ranks
                for place in _fetched_from(held.get(rank, []), node)
                if place in state.memory_addresses
            ),
        )
        for node in attempt.nodes
    }


def _held(state: RunState, attempt: AttemptState) -> dict[int, list[int]]:
    """By rank: the nodes that hold the generation that the attempt goes on from, its own first."""
    own: dict[int, list[int]] = {}
    copies: dict[int, list[int]] = {}
    for place, held in sorted(state.memory.items()):
        for generation in held.generations:
            if (generation.attempt, generation.step) != attempt.memory:
                continue
            for ranks, found in ((generation.own, own), (generation.copies, copies)):
                for rank in ranks:
                    found.setdefault(rank, []).append(place)
    return {
        rank: [*reversed(own.get(rank, [])), *copies.get(rank, [])] for rank in {**own, **copies}
    }


def _fetched_from(places: list[int], node: int) -> list[int]:
    """The node that is asked for it, if any: nobody where it is at hand."""
    return [] if node in places else places[:1]
