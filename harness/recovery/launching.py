"""From the first node that joins to workers that run: rendezvous, store, attempt."""

from harness import events as e
from harness import orders as o
from harness.diagnosis import port_in_use_verdict
from harness.errors import ExitCode
from harness.goodput import interval_of_attempt
from harness.incidents import Incident
from harness.recovery import spikes
from harness.recovery.again import closely, reread
from harness.recovery.ending import (
    STORE_NODE,
    Decision,
    close_open,
    connected,
    end,
    end_stopped,
    fail,
    next_id,
    notify,
    show_card,
    stop_asked,
)
from harness.recovery.members import (
    elastic,
    enough,
    going_on_text,
    last_call_ns,
    least,
    may_go_on,
    members,
)
from harness.recovery.memory import memory_plans, restorable
from harness.recovery.neighbours import neighbours
from harness.recovery.remedy import choose
from harness.state import AttemptState, RunState
from harness.topology import place_ranks, ranks_text


def gathered_by_ns(state: RunState, run: e.RunStarted) -> list[int]:
    """When the wait for nodes may end."""
    by_ns = state.stage_ns + int(run.policy.rendezvous_timeout * 1e9)
    call_ns = last_call_ns(state, run)
    return [by_ns] if call_ns is None else [by_ns, call_ns]


def stored_by_ns(state: RunState, run: e.RunStarted) -> int:
    return state.stage_ns + int(run.policy.rendezvous_timeout * 1e9)


def gather(state: RunState, run: e.RunStarted, now_ns: int) -> list[Decision]:
    """Wait for enough nodes, then have the store hosted."""
    stop = stop_asked(state)
    if stop is not None:
        return end_stopped(state, stop)
    here = sum(node.connected for node in state.nodes.values())
    call_ns = last_call_ns(state, run)
    called = bool(state.attempts) or (call_ns is not None and now_ns >= call_ns)
    if enough(state, run) and (here >= run.nnodes or called):
        return [host_store(state, run)]
    gone = STORE_NODE in state.nodes and not connected(state, STORE_NODE)
    if gone and (run.nnodes == 1 or state.attempts):
        which = "the only node" if run.nnodes == 1 else f"node {STORE_NODE}"
        why = f"the agent of {which} is gone: {state.nodes[STORE_NODE].lost_why}"
        return end(state, "failed", ExitCode.NODE_LOST, why)
    if now_ns >= stored_by_ns(state, run):
        return _too_few(state, run, here)
    if state.attempts:
        mark = f"after attempt {len(state.attempts) - 1} the run waits"
        text = f"harness: {mark.removesuffix('waits')}{going_on_text(state, run)}"
        return notify(state, [STORE_NODE], mark, lambda: text)
    return []


def _too_few(state: RunState, run: e.RunStarted, here: int) -> list[Decision]:
    timeout = f"within {run.policy.rendezvous_timeout:g} s"
    missing = [node for node in range(run.nnodes) if not connected(state, node)]
    what = f"node {ranks_text(missing)} did not join {timeout}"
    if elastic(run):
        what = f"only {here} of at least {least(run)} nodes were here {timeout}"
    return fail(
        state,
        ExitCode.NODE_LOST,
        what,
        f"{here} of {run.nnodes} nodes are here; start `harness run` with the same"
        " --rdzv-endpoint on the others, or ask for fewer with --nnodes",
    )


def go_on(state: RunState, run: e.RunStarted, attempt: AttemptState) -> list[Decision]:
    """After `attempt`, the next one, or the wait for nodes to make it up."""
    if enough(state, run):
        return [host_store(state, run)]
    here = len(members(state, run))
    if may_go_on(state, run):
        return [e.NodesAwaited(attempt=attempt.index, here=here, least=least(run))]
    lost = sorted(attempt.lost_nodes) or [n for n in attempt.nodes if not connected(state, n)]
    return fail(
        state,
        ExitCode.NODE_LOST,
        f"node {ranks_text(lost)} was lost while attempt {attempt.index} was being stopped:"
        f" {state.nodes[lost[0]].lost_why or attempt.lost_nodes.get(lost[0], '')}",
        "see whether the machine is alive, then run again",
    )


def host_store(state: RunState, run: e.RunStarted) -> e.OrderGiven:
    """Every attempt gets a store of its own: keys of a dead attempt mislead the next."""
    return e.OrderGiven(
        node_rank=STORE_NODE,
        order=o.HostStore(
            attempt=len(state.attempts), address=run.master_addr, port=run.master_port
        ),
    )


def await_store(state: RunState, run: e.RunStarted, now_ns: int) -> list[Decision]:
    """Wait for the store of the attempt to come, then begin the attempt."""
    stop = stop_asked(state)
    if stop is not None:
        return end_stopped(state, stop)
    gone = sorted(node.node_rank for node in state.nodes.values() if not node.connected)
    if not may_go_on(state, run):
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {ranks_text(gone)} was lost before attempt {len(state.attempts)} could start:"
            f" {state.nodes[gone[0]].lost_why}",
            "see whether the machine is alive, then run again",
        )
    if state.store_failed is not None:
        return _store_failed(state, run, state.store_failed, now_ns)
    stored = state.store is not None and state.store.attempt == len(state.attempts)
    if stored and enough(state, run):
        return [_start_attempt(state, run)]
    if stored and now_ns >= stored_by_ns(state, run):
        return _too_few(state, run, len(members(state, run)))
    if now_ns >= stored_by_ns(state, run):
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {STORE_NODE} did not host the rendezvous store within"
            f" {run.policy.rendezvous_timeout:g} s",
            "see whether its agent is stuck, then run again",
        )
    return []


def _start_attempt(state: RunState, run: e.RunStarted) -> e.AttemptStarted:
    taking_part = [state.nodes[node] for node in members(state, run)]
    nodes = place_ranks(
        [(node.node_rank, node.host, node.local_world_size) for node in taking_part]
    )
    held = restorable(state, run)
    return e.AttemptStarted(
        memory_attempt=-1 if held is None else held.attempt,
        memory_step=-1 if held is None else held.step,
        attempt=len(state.attempts),
        world_size=sum(node.size for node in nodes),
        nodes=nodes,
        why=_why(state),
        checkpoint_interval=interval_of_attempt(state),
    )


def _why(state: RunState) -> str:
    if state.attempt is None:
        return "first launch"
    if state.attempt.regroup is not None or not state.incidents:
        return "" if state.attempt.regroup is None else state.attempt.regroup.why
    incident = state.incidents[-1]
    return f"restart after incident {incident.id} ({incident.verdict.verdict})"


def _store_failed(
    state: RunState, run: e.RunStarted, failed: e.StoreFailed, now_ns: int
) -> list[Decision]:
    verdict = port_in_use_verdict(state, failed)
    if verdict is None:
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"the rendezvous store could not be hosted on {run.master_addr}: {failed.why}",
            f"give an address of node {STORE_NODE} with --master-addr",
        )
    incident = next((known for known in state.incidents if known.verdict == verdict), None)
    if incident is not None:
        reason = f"{verdict.cause}; {incident.action_reason}"
        return show_card(state, incident) or end(state, "failed", incident.exit_code, reason)
    remedy = choose(state, verdict, now_ns)
    incident = Incident(
        id=next_id(state),
        verdict=verdict,
        action=remedy.action,
        action_reason=remedy.reason,
        exit_code=remedy.exit_code,
        detected_ns=now_ns,
    )
    return [*close_open(state, "failed"), e.IncidentOpened(incident=incident)]


def start_workers(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Orders for the nodes of the attempt that have not been told to start."""
    store, run = state.store, state.run
    if run is None or store is None or len(attempt.start_ordered) == len(attempt.nodes):
        return []
    spike, plans = spikes.known(state), memory_plans(state, attempt)
    return [
        e.OrderGiven(
            node_rank=node.node_rank,
            order=o.StartWorkers(
                attempt=attempt.index,
                first_rank=node.first_rank,
                local_world_size=node.size,
                world_size=attempt.world_size,
                node_rank=group_rank,
                nnodes=len(attempt.nodes),
                master_addr=store.address,
                master_port=store.port,
                max_restarts=run.policy.max_restarts,
                checkpoint_interval=attempt.checkpoint_interval,
                memory=plans[node.node_rank],
                spike_step=-1 if spike is None else spike.count,
                spike_bound=0.0 if spike is None else spike.bound,
                closely=closely(state, attempt),
                reread=reread(state, attempt),
                neighbours=neighbours(state, attempt, node.node_rank),
            ),
        )
        for group_rank, node in enumerate(attempt.nodes.values())
        if node.node_rank not in attempt.start_ordered
    ]
