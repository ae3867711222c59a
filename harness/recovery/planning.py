"""What comes next in a run: `plan`, when to look again, and which commands are accepted."""

from typing_extensions import assert_never

from harness import events as e
from harness import orders as o
from harness.checkpointnames import ASIDE_SUFFIX
from harness.diagnosis import patience_ends_ns, standing, standing_verdict
from harness.diagnosis.signature import Signature
from harness.diagnosis.watched_files import WATCHED, to_set_aside
from harness.errors import ExitCode
from harness.faults import ANY, Fault
from harness.goodput import lost_steps
from harness.incidents import FAMILY_OF, Finding, Incident, Verdict
from harness.recovery.ending import (
    STORE_NODE,
    Decision,
    end,
    end_stopped,
    fail,
    next_id,
    notify,
    show_card,
    shut_down,
)
from harness.recovery.failing import evidence_by_ns, judge_failure, open_collection
from harness.recovery.launching import (
    await_store,
    gather,
    gathered_by_ns,
    go_on,
    start_workers,
    stored_by_ns,
)
from harness.recovery.members import grow
from harness.recovery.memory import keep_memory, kept_by_ns
from harness.recovery.preempting import end_preempted, preempt, preempted_by_ns, stop_wanted
from harness.recovery.quarantine import quarantine_notices, strikes
from harness.recovery.remedy import aside, incident_of
from harness.recovery.restarting import accept_restart, restart
from harness.recovery.retention import countable, lost_notice
from harness.recovery.saving import accept_save, save_orders
from harness.recovery.settling import settle
from harness.recovery.showing import accept_stacks, shown_by_ns, stack_orders
from harness.recovery.verifying import answered_by_ns, ask, certify, hold
from harness.recovery.watching import watch, watch_by_ns
from harness.state import AttemptState, RunState
from harness.topology import ranks_name, ranks_text


def plan(state: RunState, now_ns: int) -> list[Decision]:
    """What to do next, in this order; nothing when there is only waiting.

    All of a returned list must be folded before the next call.
    """
    if state.run is None:
        return []
    if state.ended is not None:
        return shut_down(state, state.ended)
    struck = strikes(state)
    if struck:
        return struck
    attempt = state.attempt
    match state.stage:
        case "gathering":
            return gather(state, state.run, now_ns)
        case "storing":
            return await_store(state, state.run, now_ns)
        case "running" | "judging" | "stopping" if attempt is not None:
            return _attend(state, attempt, now_ns)
        case _:
            raise ValueError(f"stage {state.stage} without an attempt")


def next_wake_ns(state: RunState, now_ns: int) -> int | None:
    """The next time after `now_ns` at which time alone could change the plan."""
    later = [at_ns for at_ns in _deadlines(state) if at_ns > now_ns]
    return min(later, default=None)


def accept(state: RunState, command: o.Command) -> tuple[bool, str]:
    """Whether `command` is accepted now, and why."""
    if state.run is None:
        return False, "the run has not started"
    if state.ended is not None:
        return False, f"the run has ended ({state.ended.outcome})"
    match command:
        case o.StopRun():
            if state.stop is not None:
                return True, "the run is being stopped already"
            return True, "the run is being stopped"
        case o.Preempt():
            if state.stop is not None:
                return True, "the run is being stopped already"
            return True, "the run is preempted"
        case o.SaveNow():
            return accept_save(state)
        case o.RestartRun():
            return accept_restart(state)
        case o.Inject(fault=fault):
            return _accept_fault(state, state.run, fault)
        case o.ShowStacks():
            return accept_stacks(state, command)
        case _:
            assert_never(command)


def _accept_fault(state: RunState, run: e.RunStarted, fault: Fault) -> tuple[bool, str]:
    if not run.chaos_allowed:
        return False, "the run was started without --chaos-allowed"
    if state.stop is not None:
        return False, "the run is being stopped"
    attempt = state.attempt
    if fault.rank == ANY:
        node = max(fault.node, 0)
        if node not in state.nodes:
            return (
                False,
                f"there is no node {node}; the nodes are {ranks_text(sorted(state.nodes))}",
            )
        return True, f"{fault.kind} of node {node} is passed on"
    if attempt is None:
        return True, f"{fault.kind} of rank {fault.rank} waits for the first attempt"
    target = attempt.ranks.get(fault.rank)
    if target is None:
        last = attempt.world_size - 1
        return False, f"there is no rank {fault.rank}; the ranks are 0-{last}"
    if state.stage == "running" and not target.alive and target.status != "not_started":
        return False, f"rank {fault.rank} is gone already"
    return True, f"{fault.kind} of rank {fault.rank} is passed to node {target.node_rank}"


# --- while an attempt runs ---------------------------------------------------------------------


def _attend(state: RunState, attempt: AttemptState, now_ns: int) -> list[Decision]:
    reachable = _reachable(attempt)
    asks = (
        stack_orders(state, attempt, reachable, now_ns)
        or _injects(state, attempt)
        or save_orders(state, attempt, reachable)
    )
    asks = asks or settle(state)
    if asks:
        return asks
    incident = _decisive_incident(state, attempt)
    stop = stop_wanted(state, attempt, reachable, now_ns)
    if stop is not None or incident is not None or attempt.regroup is not None:
        return _wind_down(state, attempt, stop, incident, now_ns)
    if state.preempt is not None:
        return preempt(state, attempt, reachable, now_ns)
    if attempt.trouble_ns and _unjudged(state, attempt):
        return judge_failure(state, attempt, reachable, now_ns)
    if attempt.restart is not None:
        return restart(attempt, attempt.restart)
    starts = start_workers(state, attempt)
    if starts:
        return starts
    asks = hold(state, attempt, reachable) or ask(attempt, reachable)
    if asks:
        return asks
    if len(attempt.gone) == attempt.world_size:
        if now_ns < answered_by_ns(attempt, reachable):
            return []
        return _standing(state, attempt, now_ns, ("numeric",)) or _finish(state, attempt)
    return (
        _standing(state, attempt, now_ns)
        or lost_notice(state)
        or certify(state, attempt, reachable)
        or quarantine_notices(state, attempt)
        or grow(state, attempt)
        or watch(state, attempt, reachable, now_ns)
        or [
            *_told_reports(state, attempt),
            *_close_recovered(state, attempt),
        ]
    )


def _standing(
    state: RunState, attempt: AttemptState, now_ns: int, families: tuple[str, ...] = ()
) -> list[Decision]:
    """An incident for what is wrong although the run goes on, each kind and ranks once; of these
    `families` only, where some are given."""
    told = {
        (incident.verdict.verdict, incident.verdict.first_failing, _which(incident.verdict))
        for incident in state.incidents
        if incident.verdict.attempt == attempt.index
    }
    for finding in standing(state):
        if families and FAMILY_OF[finding.verdict] not in families:
            continue
        if (finding.verdict, finding.ranks, _which(finding)) not in told:
            verdict = standing_verdict(state, finding)
            incident = incident_of(state, verdict, next_id(state), now_ns)
            return [e.IncidentOpened(incident=incident)]
    return []


def _which(claim: Finding | Verdict) -> str:
    """What tells several of one kind and rank apart: each bad file is told."""
    return claim.cause if Signature.parse(claim.signature).what == WATCHED else ""


def _finish(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Every rank is gone, and whatever went wrong has been reported."""
    if not attempt.failed:
        return end(state, "succeeded", ExitCode.OK, "every rank finished")
    return _told_reports(state, attempt) or end(
        state,
        "failed",
        ExitCode.SCRIPT_FAILED,
        f"the script ended, but {ranks_name(sorted(attempt.failed))} failed on the way out",
    )


def _unjudged(state: RunState, attempt: AttemptState) -> bool:
    """Whether something went wrong that no incident of this attempt speaks of."""
    if attempt.lost_nodes:
        return True
    judged: set[int] = set()
    for incident in state.incidents:
        if incident.verdict.attempt == attempt.index and not _failed_nothing(incident):
            judged.update(incident.verdict.first_failing, incident.verdict.victims)
    return not attempt.failed <= judged


_OF_RUNS_THAT_GO_ON = ("slow", "leak", "checkpoint", "numeric")


def _failed_nothing(incident: Incident) -> bool:
    """Told of a run that went on: who fails later has not been spoken of."""
    return incident.action == "report" and incident.verdict.family in _OF_RUNS_THAT_GO_ON


def _wind_down(
    state: RunState,
    attempt: AttemptState,
    stop: o.StopRun | None,
    incident: Incident | None,
    now_ns: int,
) -> list[Decision]:
    """Stop what is left of the attempt, then go on or end."""
    assert state.run is not None
    tell = [] if incident is None else show_card(state, incident)
    if incident is None and stop is None and attempt.regroup is not None:
        text = f"harness: attempt {attempt.index} is stopped; the run {attempt.regroup.why}"
        tell = notify(state, [STORE_NODE], text, lambda: text)
    stops = _stop_workers(state, attempt, stop, incident)
    if tell or stops:
        return [*tell, *stops]
    late = sorted(_reachable(attempt) - attempt.stopped_nodes)
    if late and now_ns < _stopped_by_ns(state, attempt):
        return []
    if stop is not None:
        wanted = state.stop is None and not late
        keep = keep_memory(state, attempt, incident, now_ns, ends=True) if wanted else None
        if keep is not None:
            return keep
        return end_preempted(state, attempt) or end_stopped(state, stop)
    if late:
        return fail(
            state,
            ExitCode.NODE_LOST,
            f"node {ranks_text(late)} could not stop its workers within"
            f" {state.run.policy.stop_grace + state.run.policy.stop_limit:g} s",
            "a process of theirs cannot be killed (look for state D in ps); the machine needs care",
        )
    if incident is None and _all_left_well(attempt):
        return _finish(state, attempt)
    ends = incident is not None and incident.action in ("stop", "report", "none")
    keep = keep_memory(state, attempt, incident, now_ns, ends=ends)
    if keep is not None:
        return keep
    if incident is not None and ends:
        reason = f"{incident.verdict.cause}; not restarted: {incident.action_reason}"
        outcome = "succeeded" if incident.exit_code == ExitCode.OK else "failed"
        return end(state, outcome, incident.exit_code, reason)
    moves = None if incident is None else _set_aside(state, attempt, incident)
    if moves is not None:
        return moves
    return go_on(state, state.run, attempt)


def _all_left_well(attempt: AttemptState) -> bool:
    """Whether every rank had finished before it could be stopped."""
    endings = [rank.exited for rank in attempt.ranks.values()]
    return all(x is not None and not x.ordered and x.exit_code == 0 for x in endings)


def _set_aside(state: RunState, attempt: AttemptState, incident: Incident) -> list[Decision] | None:
    """Orders for bad checkpoint files, nothing while they are carried out, None when done."""
    bad = aside(state, incident.verdict) if incident.action == "rollback" else {}
    good = countable(state, attempt) if incident.action == "rollback" else {}
    bad |= to_set_aside(state.attempts)
    for rank in attempt.ranks.values():  # whoever was stopped amid a save, too
        torn = rank.exited.torn if rank.exited is not None else ()
        bad |= dict.fromkeys(torn, rank.node_rank)
    paths: dict[int, list[str]] = {}
    for path, node in bad.items():
        if node in _reachable(attempt):
            paths.setdefault(node, []).append(path)
    asked = paths.keys() | ({*good.values()} & _reachable(attempt))
    untold = asked - attempt.aside_ordered
    if untold:
        return [
            e.OrderGiven(
                node_rank=node,
                order=o.SetAside(
                    attempt=attempt.index,
                    paths=tuple(paths.get(node, ())),
                    suffix=ASIDE_SUFFIX,
                    good=tuple(path for path, at in good.items() if at == node),
                ),
            )
            for node in sorted(untold)
        ]
    waiting = paths.keys() & _reachable(attempt) - attempt.set_aside.keys()
    return [] if waiting else None


def _stop_workers(
    state: RunState, attempt: AttemptState, stop: o.StopRun | None, incident: Incident | None
) -> list[Decision]:
    assert state.run is not None
    if stop is not None:
        why = stop.why
    elif attempt.regroup is not None and incident is None:
        why = attempt.regroup.why
    else:
        assert incident is not None
        why = f"incident {incident.id}: {incident.verdict.verdict}"
    order = o.StopWorkers(attempt=attempt.index, grace=state.run.policy.stop_grace, why=why)
    unstopped = _reachable(attempt) - attempt.stop_ordered
    return [e.OrderGiven(node_rank=node, order=order) for node in sorted(unstopped)]


def _reachable(attempt: AttemptState) -> set[int]:
    """Nodes that have workers of the attempt and can be told something. The workers of a lost node
    died with its agent, even when another agent has joined in its place."""
    return attempt.start_ordered - attempt.lost_nodes.keys()


def _injects(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Harm that was asked for and accepted, passed on to its node."""
    return [
        e.OrderGiven(
            node_rank=max(fault.node, 0)
            if fault.rank not in attempt.ranks
            else attempt.ranks[fault.rank].node_rank,
            order=o.InjectFault(fault=fault),
        )
        for fault in (inject.fault for inject in state.injects[state.injects_ordered :])
    ]


# --- deadlines ---------------------------------------------------------------------------------


def _stopped_by_ns(state: RunState, attempt: AttemptState) -> int:
    assert state.run is not None
    policy = state.run.policy
    return attempt.stop_ordered_ns + int((policy.stop_grace + policy.stop_limit) * 1e9)


def _deadlines(state: RunState) -> list[int]:
    if state.run is None or state.ended is not None:
        return []
    return [*_stage_deadlines(state, state.run), *shown_by_ns(state)]


def _stage_deadlines(state: RunState, run: e.RunStarted) -> list[int]:
    attempt = state.attempt
    match state.stage:
        case "gathering":
            return gathered_by_ns(state, run)
        case "storing":
            return [stored_by_ns(state, run)]
        case "running" if attempt is not None and state.preempt is not None:
            return preempted_by_ns(state, attempt)
        case "running" | "judging" if attempt is not None and attempt.trouble_ns:
            collection = open_collection(state, attempt)
            evidence = [] if collection is None else [evidence_by_ns(state, collection)]
            return [*evidence, *patience_ends_ns(state)]
        case "running" if attempt is not None:
            answered = answered_by_ns(attempt, _reachable(attempt))
            return [*watch_by_ns(state, attempt), *filter(None, [answered])]
        case "stopping" if attempt is not None:
            return [_stopped_by_ns(state, attempt), *kept_by_ns(attempt)]
        case _:
            return []


# --- incidents ---------------------------------------------------------------------------------


def _decisive_incident(state: RunState, attempt: AttemptState) -> Incident | None:
    """The incident that ends this attempt, when there is one."""
    for incident in reversed(state.incidents):
        if incident.verdict.attempt != attempt.index:
            return None
        if incident.action in ("restart", "rollback", "stop"):
            return incident
    return None


def _close_recovered(state: RunState, attempt: AttemptState) -> list[Decision]:
    if not attempt.first_step_ns or not state.incidents:
        return []
    incident = state.incidents[-1]
    if incident.outcome != "open" or incident.verdict.attempt >= attempt.index:
        return []
    return [
        e.IncidentClosed(
            incident_id=incident.id,
            outcome="recovered",
            lost_steps=lost_steps(state, incident, attempt),
        )
    ]


def _told_reports(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Cards of incidents that change nothing."""
    told: list[Decision] = []
    for incident in state.incidents:
        if incident.verdict.attempt == attempt.index and incident.action in ("report", "none"):
            told.extend(show_card(state, incident))
    return told
