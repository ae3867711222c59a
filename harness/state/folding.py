"""`fold`: a state and one record give the next state.

It changes the state it is given and returns it; nothing else may change a state. It takes no
clock: all times come from the records, so that a replay folds to the same state.
"""

from collections.abc import Iterable
from dataclasses import replace
from sys import intern

from typing_extensions import assert_never

from harness import events as e
from harness import orders as o
from harness.state import (
    booking,
    digesting,
    files,
    groups,
    meetings,
    memory,
    nodes,
    pulses,
    sampling,
    stalls,
)
from harness.state.reading import arrivals_read, gpus_read, setups_read, vitals_read
from harness.state.rerun import left, pending
from harness.state.words import (
    AttemptState,
    Collection,
    RankState,
    RunState,
    StackRequest,
    Stage,
)


def fold(state: RunState, record: e.Record) -> RunState:
    """`state` after `record`."""
    record = state.wall_clocks.steady(record, state.last_ns)
    stamp, event = record.stamp, record.event
    state.last_ns = max(state.last_ns, stamp.wall_ns)
    kind, _, number = stamp.source.partition(":")
    node_rank = int(number) if number.isdigit() else None
    if kind == "agent" and node_rank is not None and (node := state.nodes.get(node_rank)):
        # The journal's newest time stands in for the arrival: a node whose clock is behind must
        # not look silent.
        node.seen_ns = state.last_ns
    if state.judging:
        state.clocks.note(kind, node_rank, stamp.wall_ns)
    _fold(state, stamp, event)
    return state


def fold_all(records: Iterable[e.Record], state: RunState | None = None) -> RunState:
    """All records folded, into a fresh state unless one is given."""
    state = RunState() if state is None else state
    for record in records:
        fold(state, record)
    return state


def _fold(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    match event:
        case e.PulsesRead():  # nearly all that comes
            pulses.read(state, stamp, event)
        case e.EvidenceTaken() | e.EvidenceOfNode():  # of thousands of ranks at once
            _evidence_taken(state, stamp, event)
        case e.RunStarted():
            _run_started(state, stamp, event)
        case e.ControllerStarted():
            state.incarnations = event.incarnation + 1
            nodes.unheard(state)
        case e.AgentJoined():
            nodes.joined(state, event)
        case e.AgentLost():
            nodes.lost(state, stamp, event)
        case e.ZygoteReady():
            nodes.launching(state, event.node_rank, "zygote")
        case e.ZygoteUnused():
            nodes.launching(state, event.node_rank, event.why)
        case e.StoreReady():
            state.store = event
        case e.StoreFailed():
            state.store_failed = event
        case e.AttemptStarted():
            _attempt_started(state, stamp, event)
        case e.NodesAwaited():
            _enter(state, stamp, "gathering")
        case e.Regrouping():
            state.attempts[event.attempt].regroup = event
        case e.WorkersStopped():
            _workers_stopped(state, stamp, event)
        case e.RunEnded():
            _run_ended(state, stamp, event)
        case (
            e.OrderGiven()
            | e.CommandTaken()
            | e.FaultInjected()
            | e.HostStruck()
            | e.IncidentOpened()
            | e.IncidentClosed()
            | e.IncidentSettled()
            | e.StallLooked()
        ):
            _fold_decision(state, stamp, event)
        case e.MemoryServed() | e.MemoryHeld() | e.MemoryKept():
            memory.heard(state, event)
        case e.StacksTaken():
            _stacks_taken(state, event)
        case e.MarksDiffer() | e.MarksSampled() | e.DigestsRead() | e.DigestsTold():
            _compared(state, stamp, event)
        case e.LookedClosely() | e.DoubtRaised() | e.CheckpointCertified():
            _compared(state, stamp, event)
        case e.EvidenceComplete():
            stalls.answered(state, event)
        case (
            e.WorkerStarted()
            | e.WorkerRaised()
            | e.WorkerExited()
            | e.PhaseChanged()
            | e.MeshDeclared()
            | e.GroupCreated()
            | e.CheckpointSaved()
            | e.CheckpointLoaded()
            | e.CheckpointFile()
            | e.FilesSetAside()
            | e.CheckpointFailed()
            | e.CheckpointFlaw()
            | e.StopStepTaken()
            | e.SaveStepTaken()
            | e.FactsLost()
            | e.ArrivalsRead()
            | e.VitalsRead()
            | e.GpusRead()
            | e.GpuFailed()
            | e.SetupsRead()
        ):
            _fold_worker(state, stamp, event)
        case _:
            assert_never(event)


def _evidence_taken(
    state: RunState, stamp: e.Stamp, event: e.EvidenceTaken | e.EvidenceOfNode
) -> None:
    for taken in event.taken if isinstance(event, e.EvidenceOfNode) else (event,):
        rank = _rank(state, stamp.attempt, taken.rank)
        if rank is not None:
            rank.evidence = taken
            rank.refs["evidence"] = (stamp.source, stamp.seq)


def _run_ended(state: RunState, stamp: e.Stamp, event: e.RunEnded) -> None:
    state.ended, state.ended_ns = event, stamp.wall_ns
    _enter(state, stamp, "ended")


def _run_started(state: RunState, stamp: e.Stamp, event: e.RunStarted) -> None:
    state.run = event
    state.started_ns = state.stage_ns = stamp.wall_ns
    state.strikes = list(event.strikes)


def _fold_decision(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    match event:
        case e.OrderGiven():
            _order_given(state, stamp, event)
        case e.CommandTaken():
            _command_taken(state, stamp, event)
        case e.FaultInjected():
            state.faults.append(event)
        case e.HostStruck():
            nodes.struck(state, stamp, event)
        case e.IncidentOpened():
            state.incidents.append(event.incident)
            judged = _attempt(state, event.incident.verdict.attempt)
            if judged is not None:
                booking.told_late(judged, event.incident)
            if event.incident.action in ("report", "none"):
                _enter(state, stamp, "running")
        case e.IncidentClosed():
            _incident_closed(state, event)
        case e.IncidentSettled():
            nodes.settled(state, event)
        case e.StallLooked():
            attempt = _attempt(state, stamp.attempt)
            if attempt is not None:
                stalls.looked(state, attempt, event)
        case _:
            pass


def _fold_worker(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    match event:
        case e.ArrivalsRead():
            arrivals_read(state, stamp, event)
        case e.VitalsRead():
            vitals_read(state, stamp, event)
        case e.GpusRead() | e.GpuFailed():
            gpus_read(state, stamp, event)
        case e.SetupsRead():
            setups_read(state, stamp, event)
        case e.WorkerStarted():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.node_rank, rank.local_rank = event.node_rank, event.local_rank
                rank.pid, rank.status, rank.started_ns = event.pid, "running", stamp.wall_ns
                rank.advanced_ns = state.last_ns
                if event.launched_by == "zygote":
                    booking.sign(state.attempts[stamp.attempt], rank, stamp.wall_ns)
        case e.WorkerRaised():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                rank.raised = event
                rank.refs["raised"] = (stamp.source, stamp.seq)
                if rank.exited is None:
                    rank.status = "raised"
                _trouble(state, stamp, event.raised_ns, event.rank)
        case e.WorkerExited():
            _worker_exited(state, stamp, event)
        case e.PhaseChanged():
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                booking.change_phase(
                    state.attempts[stamp.attempt], rank, event.phase, stamp.wall_ns
                )
                rank.phase, rank.phase_ns = event.phase, stamp.wall_ns
        case e.MeshDeclared():
            names = map(intern, event.names)  # of each rank they were decoded anew
            state.coordinates[event.rank] = dict(zip(names, event.coordinates, strict=False))
            if state.mesh is None or event.rank <= state.mesh.rank:
                state.mesh = event
        case e.GroupCreated():
            groups.created(state, _attempt(state, stamp.attempt), event)
        case e.CheckpointSaved():
            files.saved(state, stamp, event)
            rank = _rank(state, stamp.attempt, event.rank)
            if rank is not None:
                booking.saved(state.attempts[stamp.attempt], rank, event.seconds, stamp.wall_ns)
        case e.CheckpointLoaded():
            attempt = _attempt(state, stamp.attempt)
            if attempt is not None:
                attempt.resumed_step = event.step
                attempt.sources.add(event.source or "disk")
                if (rank := attempt.ranks.get(event.rank)) is not None:
                    booking.loaded(attempt, rank, event.seconds, stamp.wall_ns)
        case e.CheckpointFile() | e.CheckpointFailed() | e.CheckpointFlaw() | e.FilesSetAside():
            attempt = _attempt(state, stamp.attempt)
            if attempt is not None:
                files.note(state, attempt, stamp, event)
                meetings.noted(state, stamp, event)
        case e.StopStepTaken() | e.SaveStepTaken():
            meetings.answered(_attempt(state, event.attempt), event)
        case _:
            pass


def _attempt(state: RunState, index: int) -> AttemptState | None:
    return state.attempts[index] if 0 <= index < len(state.attempts) else None


def _rank(state: RunState, attempt_index: int, rank: int) -> RankState | None:
    attempt = _attempt(state, attempt_index)
    return None if attempt is None else attempt.ranks.get(rank)


def _enter(state: RunState, stamp: e.Stamp, stage: Stage) -> None:
    if state.stage != stage:
        state.stage, state.stage_ns = stage, stamp.wall_ns


def _trouble(state: RunState, stamp: e.Stamp, at_ns: int, rank: int | None) -> None:
    attempt = _attempt(state, stamp.attempt)
    if attempt is None:
        return
    if attempt.trouble_ns == 0 or at_ns < attempt.trouble_ns:
        attempt.trouble_ns = at_ns
    if attempt.trouble_seen_ns == 0:
        attempt.trouble_seen_ns = state.last_ns
    if rank is not None:
        attempt.failed.add(rank)


def _command_taken(state: RunState, stamp: e.Stamp, event: e.CommandTaken) -> None:
    state.commands.append(event)
    if not event.accepted:
        return
    match event.command:
        case o.StopRun():
            state.stop = state.stop or event.command
        case o.Preempt():
            if state.preempt is None:
                state.preempt, state.preempt_ns = event.command, stamp.wall_ns
        case o.SaveNow():
            meetings.wanted(state, event.command)
        case o.RestartRun():
            if state.attempt is not None:
                state.attempt.restart = state.attempt.restart or event.command
        case o.Inject():
            state.injects.append(event.command)
        case o.ShowStacks():
            state.stack_requests[event.command.request] = StackRequest(
                command=event.command, taken_ns=stamp.wall_ns
            )
        case _:
            assert_never(event.command)


def _attempt_started(state: RunState, stamp: e.Stamp, event: e.AttemptStarted) -> None:
    attempt = _new_attempt(state, stamp, event)
    booking.open_attempt(attempt, state.attempt)
    state.attempts.append(attempt)
    _enter(state, stamp, "running")


def _new_attempt(state: RunState, stamp: e.Stamp, event: e.AttemptStarted) -> AttemptState:
    ranks = {
        rank: RankState(rank=rank, node_rank=node.node_rank)
        for node in event.nodes
        for rank in node.ranks
    }
    if state.attempt is not None and state.attempt.world_size != event.world_size:
        groups.forget(state)
    memory.attempt_started(state, event)
    before, reruns = state.attempt, []
    if before is not None and before.world_size == event.world_size:
        replicas = before.replicas
        reruns = left(before.reruns)
        reruns += pending(replicas.tracks.values(), replicas.suspicions, before.index)
    return AttemptState(
        index=event.attempt,
        world_size=event.world_size,
        ranks=ranks,
        nodes={node.node_rank: node for node in event.nodes},
        why=event.why,
        started_ns=stamp.wall_ns,
        forgiven={} if state.attempt is None else dict(state.attempt.forgiven),
        checkpoint_interval=event.checkpoint_interval,
        memory=(event.memory_attempt, event.memory_step),
        reruns=reruns,
    )


def _worker_exited(state: RunState, stamp: e.Stamp, event: e.WorkerExited) -> None:
    attempt = _attempt(state, stamp.attempt)
    rank = None if attempt is None else attempt.ranks.get(event.rank)
    if attempt is None or rank is None:
        return
    rank.exited = event
    rank.refs["exited"] = (stamp.source, stamp.seq)
    rank.status = "stopped" if event.ordered else "exited"
    attempt.gone.add(event.rank)
    if not event.ordered and event.exit_code != 0:
        _trouble(state, stamp, event.exited_ns, event.rank)


def _workers_stopped(state: RunState, stamp: e.Stamp, event: e.WorkersStopped) -> None:
    attempt = _attempt(state, event.attempt)
    if attempt is None:
        return
    attempt.stopped_nodes.add(event.node_rank)
    if attempt.stopped_nodes >= attempt.nodes.keys():
        attempt.stopped_ns = stamp.wall_ns


def _order_given(state: RunState, stamp: e.Stamp, event: e.OrderGiven) -> None:
    state.orders.setdefault(event.node_rank, []).append(event.order)
    match event.order:
        case o.HostStore():
            state.store, state.store_failed = None, None
            _enter(state, stamp, "storing")
        case o.StartWorkers(attempt=index):
            attempt = _attempt(state, index)
            if attempt is not None:
                attempt.start_ordered.add(event.node_rank)
        case o.CollectEvidence():
            _collect(state, stamp, event.node_rank, event.order)
        case o.StopWorkers(attempt=index, why=why):
            attempt = _attempt(state, index)
            if attempt is not None:
                attempt.stop_why = attempt.stop_why or why
                attempt.stop_ordered.add(event.node_rank)
                attempt.stop_ordered_ns = attempt.stop_ordered_ns or stamp.wall_ns
            _enter(state, stamp, "stopping")
        case o.SetAside(attempt=index):
            attempt = _attempt(state, index)
            if attempt is not None:
                attempt.aside_ordered.add(event.node_rank)
        case o.HoldCheckpoint(attempt=index, path=path):
            attempt = _attempt(state, index)
            if attempt is not None:
                attempt.replicas.held.add(path)
        case o.TellDigests() | o.LookClosely() | o.CertifyCheckpoint():
            if state.attempt is not None:
                digesting.ordered(state.attempt, event.node_rank, event.order, stamp.wall_ns)
        case o.KeepMemory(failed=index):
            attempt = _attempt(state, index)
            if attempt is not None:
                attempt.keep_ordered[event.node_rank] = event.order
                attempt.keep_ordered_ns = attempt.keep_ordered_ns or stamp.wall_ns
        case o.StopAtStep() | o.SaveAtStep():
            meetings.ordered(_attempt(state, event.order.attempt), event.node_rank, event.order)
        case o.InjectFault():
            state.injects_ordered += 1
        case o.TakeStacks(request=name):
            if (request := state.stack_requests.get(name)) is not None:
                request.asked.add(event.node_rank)
        case o.Shutdown():
            state.shut_down.add(event.node_rank)
        case o.Notify(text=text, request=name, about=about):
            state.notices.append(text)
            state.told.add(about)
            state.stack_requests.pop(name, None)
        case _:
            assert_never(event.order)


def _collect(state: RunState, stamp: e.Stamp, node_rank: int, order: o.CollectEvidence) -> None:
    if not order.suspicion:
        _enter(state, stamp, "judging")
    collection = next((c for c in state.collections if c.index == order.collection), None)
    if collection is None:
        collection = Collection(
            index=order.collection,
            attempt=order.attempt,
            ordered_ns=stamp.wall_ns,
            why=order.why,
            incident=order.incident or order.collection + 1,
            suspicion=order.suspicion,
        )
        state.collections.append(collection)
    collection.asked.add(node_rank)
    collection.asked_ns = stamp.wall_ns
    collection.waiting.add(node_rank)


def _stacks_taken(state: RunState, event: e.StacksTaken) -> None:
    request = state.stack_requests.get(event.request)
    if request is None:
        return
    request.answers[event.node_rank] = event
    if request.command.show_on < 0 and request.answers.keys() >= request.asked:
        del state.stack_requests[event.request]  # whoever asked reads the events


def _compared(state: RunState, stamp: e.Stamp, event: e.Event) -> None:
    """What ranks did, or had, side by side."""
    attempt = _attempt(state, stamp.attempt)
    if attempt is None:
        return
    ref = (stamp.source, stamp.seq)
    if isinstance(event, e.MarksDiffer | e.MarksSampled):
        sampling.note(attempt, ref, event)
    elif isinstance(event, digesting.Event):
        digesting.note(attempt, ref, event)


def _incident_closed(state: RunState, event: e.IncidentClosed) -> None:
    for at, incident in enumerate(state.incidents):
        if incident.id == event.incident_id:
            state.incidents[at] = replace(
                incident, outcome=event.outcome, lost_steps=event.lost_steps
            )
