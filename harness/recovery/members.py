"""Which nodes take part in the next attempt, and whether there are enough of them."""

from harness import events as e
from harness.recovery.ending import STORE_NODE, Decision, connected, notify
from harness.state import AttemptState, NodeState, RunState
from harness.topology import ranks_text


def elastic(run: e.RunStarted) -> bool:
    """Whether nodes may join in place of lost ones."""
    return run.min_nodes > 0 or run.spares > 0


def least(run: e.RunStarted) -> int:
    """Fewer nodes than this are not enough."""
    return run.min_nodes or run.nnodes


def members(state: RunState, run: e.RunStarted) -> list[int]:
    """The nodes that would make up an attempt now, in order; none without node 0, which hosts the
    store. Those of the newest attempt stay, before others come in; hosts with too many strikes
    only come in where there are too few others."""
    if not connected(state, STORE_NODE):
        return []
    before = {} if state.attempt is None else state.attempt.nodes

    def rank(node: NodeState) -> tuple[bool, bool, int]:
        return node.node_rank != STORE_NODE, node.node_rank not in before, node.node_rank

    here = sorted((node for node in state.nodes.values() if node.connected), key=rank)
    out = state.struck_out
    good = [n for n in here if n.host not in out or n.node_rank == STORE_NODE]
    bad = [n for n in here if n.host in out and n.node_rank != STORE_NODE]
    chosen = [*good[: run.nnodes], *bad[: max(0, least(run) - len(good))]]
    return sorted(node.node_rank for node in chosen)


def enough(state: RunState, run: e.RunStarted) -> bool:
    return len(members(state, run)) >= least(run)


def may_go_on(state: RunState, run: e.RunStarted) -> bool:
    """Whether there is another attempt to hope for: enough nodes, or the wait for them."""
    return enough(state, run) or (elastic(run) and connected(state, STORE_NODE))


def last_call_ns(state: RunState, run: e.RunStarted) -> int | None:
    """When a run that waits for its first attempt no longer waits for more than the least; None
    while fewer are here."""
    joined = sorted(node.joined_ns for node in state.nodes.values() if node.connected)
    if len(joined) < least(run) or not connected(state, STORE_NODE):
        return None
    return joined[least(run) - 1] + int(run.policy.last_call * 1e9)


def going_on_text(state: RunState, run: e.RunStarted) -> str:
    """With which nodes the run goes on after the newest attempt; empty when with the same."""
    attempt, nodes = state.attempt, members(state, run)
    if attempt is None:
        return ""
    if len(nodes) < least(run):
        return (
            f"waits up to {run.policy.rendezvous_timeout:g} s for another node:"
            f" {len(nodes)} of at least {least(run)} are here"
        )
    if not attempt.lost_nodes and set(nodes) == attempt.nodes.keys():
        return ""
    ranks = sum(state.nodes[node].local_world_size for node in nodes)
    text = f"goes on with {_nodes(len(nodes))} and {ranks} ranks"
    if ranks != attempt.world_size:
        text += f" instead of {attempt.world_size}"
    fresh = _new(attempt, nodes)
    return text + (f", node {ranks_text(fresh)} comes in" if fresh else "")


def grow(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Stop an attempt of fewer nodes than wanted for those that have joined since, as soon as
    nothing is lost by it."""
    run = state.run
    assert run is not None
    if not run.grow or len(attempt.nodes) >= min(run.nnodes, len(state.nodes)):
        return []
    nodes = members(state, run)
    if len(nodes) <= len(attempt.nodes):
        return []
    fresh = _new(attempt, nodes)
    who = f"node {ranks_text(fresh)}"
    text = (
        f"harness: {who} joined while attempt {attempt.index} runs on {_nodes(len(attempt.nodes))};"
        " it takes part after the next checkpoint that all ranks save"
    )
    since_ns = max(state.nodes[node].joined_ns for node in fresh)
    steps = [
        mark.step
        for mark in state.checkpoints.values()
        if mark.attempt == attempt.index and mark.whole_ns >= since_ns
    ]
    if not steps:
        return notify(state, [STORE_NODE], text, lambda: text)
    why = f"grows to {_nodes(len(nodes))} with {who}, from the checkpoint of step {max(steps)}"
    return [e.Regrouping(attempt=attempt.index, why=why)]


def _new(attempt: AttemptState, nodes: list[int]) -> list[int]:
    return [n for n in nodes if n not in attempt.nodes or n in attempt.lost_nodes]


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
