"""From the first node that joins to workers that run: rendezvous, store, attempt."""

from harness import events as e
from harness import orders as o
from harness.diagnosis import port_in_use_verdict
from harness.errors import ExitCode
from harness.incidents import Incident
from harness.recovery.ending import (
    STORE_NODE,
    Decision,
    close_open,
    connected,
    end,
    end_stopped,
    fail,
    next_id,
    show_card,
    stop_asked,
)
from harness.recovery.remedy import choose
from harness.state import AttemptState, RunState
from harness.topology import place_ranks, ranks_text


def gathered_by_ns(state: RunState, run: e.RunStarted) -> int:
    return state.started_ns + int(run.policy.rendezvous_timeout * 1e9)


def stored_by_ns(state: RunState, run: e.RunStarted) -> int:
    return state.stage_ns + int(run.policy.rendezvous_timeout * 1e9)


def gather(state: RunState, run: e.RunStarted, now_ns: int) -> list[Decision]:
    """Wait for all nodes, then have the store hosted."""
    stop = stop_asked(state)
    if stop is not None:
        return end_stopped(state, stop)
    missing = [node for node in range(run.nnodes) if not connected(state, node)]
    if not missing:
        return [host_store(state, run)]
    if run.nnodes == 1 and STORE_NODE in state.nodes:
        why = f"the agent of the only node is gone: {state.nodes[STORE_NODE].lost_why}"
        return end(state, "failed", ExitCode.NODE_LOST, why)
    if now_ns >= gathered_by_ns(state, run):
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {ranks_text(missing)} did not join within {run.policy.rendezvous_timeout:g} s",
            f"{run.nnodes - len(missing)} of {run.nnodes} nodes are here; start `harness run` with"
            " the same --rdzv-endpoint on the others, or ask for fewer with --nnodes",
        )
    return []


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
    gone = [node for node in range(run.nnodes) if not connected(state, node)]
    if gone:
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {ranks_text(gone)} was lost before attempt {len(state.attempts)} could start:"
            f" {state.nodes[gone[0]].lost_why}",
            "see whether the machine is alive, then run again",
        )
    if state.store_failed is not None:
        return _store_failed(state, run, state.store_failed, now_ns)
    if state.store is not None and state.store.attempt == len(state.attempts):
        return [_start_attempt(state)]
    if now_ns >= stored_by_ns(state, run):
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {STORE_NODE} did not host the rendezvous store within"
            f" {run.policy.rendezvous_timeout:g} s",
            "see whether its agent is stuck, then run again",
        )
    return []


def _start_attempt(state: RunState) -> e.AttemptStarted:
    nodes = place_ranks(
        [(node.node_rank, node.host, node.local_world_size) for node in state.nodes.values()]
    )
    incident = state.incidents[-1] if state.incidents else None
    return e.AttemptStarted(
        attempt=len(state.attempts),
        world_size=sum(node.size for node in nodes),
        nodes=nodes,
        why="first launch"
        if incident is None
        else f"restart after incident {incident.id} ({incident.verdict.verdict})",
    )


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
    return [
        e.OrderGiven(
            node_rank=node.node_rank,
            order=o.StartWorkers(
                attempt=attempt.index,
                first_rank=node.first_rank,
                local_world_size=node.size,
                world_size=attempt.world_size,
                node_rank=node.node_rank,
                nnodes=len(attempt.nodes),
                master_addr=store.address,
                master_port=store.port,
                max_restarts=run.policy.max_restarts,
            ),
        )
        for node in attempt.nodes.values()
        if node.node_rank not in attempt.start_ordered
    ]
