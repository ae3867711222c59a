"""A run in numbers, from its state alone."""

from collections import Counter
from typing import get_args

from harness import goodput
from harness.metrics import catalogue as c
from harness.metrics.catalogue import Sample, Spread
from harness.state import AttemptState, RunState
from harness.state.words import Stage


def of_run(state: RunState, journal_bytes: int) -> list[Sample]:
    """What the controller tells. Costs a look at every rank; nothing before the run began."""
    if state.run is None:
        return []
    found = [
        Sample(c.RUN_INFO, 1, (state.run.harness_version,)),
        Sample(c.RUN_START, state.started_ns / 1e9),
        *(Sample(c.RUN_STAGE, float(state.stage == stage), (stage,)) for stage in get_args(Stage)),
        *_nodes(state),
        Sample(c.ATTEMPTS, len(state.attempts)),
        Sample(c.RESTARTS, max(0, len(state.attempts) - 1)),
        Sample(c.CONTROLLER_STARTS, state.incarnations),
        Sample(c.JOURNAL_BYTES, journal_bytes),
        *_incidents(state),
        *_time(state),
        *_checkpoint(state),
        *(
            Sample(c.STRIKES, len(strikes), (host,))
            for host, strikes in sorted(state.strikes_by_host.items())
        ),
    ]
    if state.ended is not None:
        found.append(Sample(c.RUN_EXIT_CODE, state.ended.exit_code))
    return found if state.attempt is None else found + _progress(state.attempt)


def _nodes(state: RunState) -> list[Sample]:
    connected = sum(node.connected and not node.lost_why for node in state.nodes.values())
    lost = sum(bool(node.lost_why) for node in state.nodes.values())
    silent = len(state.nodes) - connected - lost
    assert state.run is not None
    return [
        Sample(c.RUN_NODES_WANTED, state.run.nnodes),
        Sample(c.RUN_NODES, connected, ("connected",)),
        Sample(c.RUN_NODES, silent, ("disconnected",)),
        Sample(c.RUN_NODES, lost, ("lost",)),
    ]


def _progress(attempt: AttemptState) -> list[Sample]:
    ranks = attempt.ranks.values()
    statuses = Counter(rank.status for rank in ranks)
    found = [
        Sample(c.RUN_RANKS, statuses[status], (status,))
        for status in ("not_started", "running", "raised", "exited", "stopped")
    ]
    found.append(Sample(c.RUN_STEP, attempt.step))
    found.append(Sample(c.STALLED, float(attempt.stall is not None)))
    furthest = max(ranks, key=lambda rank: (rank.step, -rank.rank), default=None)
    if furthest is not None and furthest.step_ns:
        found.append(Sample(c.RUN_LAST_STEP, furthest.step_ns / 1e9))
    wanted = max((rank.total_steps for rank in ranks), default=0)
    if wanted:
        found.append(Sample(c.RUN_STEPS_WANTED, wanted))
    tokens = max((rank.tokens for rank in ranks), default=0)
    if tokens:
        found.append(Sample(c.RUN_TOKENS, tokens))
    telling = [rank for rank in ranks if rank.loss is not None or not rank.loss_finite]
    if telling:
        loss = min(telling, key=lambda rank: rank.rank).loss
        found.append(Sample(c.RUN_LOSS, float("nan") if loss is None else loss))
    return found


def _incidents(state: RunState) -> list[Sample]:
    found: list[Sample] = []
    kinds = Counter((i.verdict.verdict, i.verdict.family, i.action) for i in state.incidents)
    found += [Sample(c.INCIDENTS, count, kind) for kind, count in sorted(kinds.items())]
    still = Counter(i.verdict.verdict for i in state.incidents if i.outcome == "open")
    found += [Sample(c.INCIDENTS_OPEN, count, (kind,)) for kind, count in sorted(still.items())]
    waits: dict[str, float] = {}
    for incident in state.incidents:
        if incident.verdict.wait_share and incident.outcome == "open":
            waits[incident.verdict.verdict] = incident.verdict.wait_share
    found += [Sample(c.STRAGGLING, share, (kind,)) for kind, share in sorted(waits.items())]
    if state.incidents:
        verdict = state.incidents[-1].verdict
        attempt = state.attempts[verdict.attempt] if verdict.attempt < len(state.attempts) else None
        for rank in verdict.first_failing:
            known = None if attempt is None else attempt.ranks.get(rank)
            node = "" if known is None else str(known.node_rank)
            found.append(Sample(c.FIRST_FAILING, 1, (verdict.verdict, node, str(rank))))
    times = goodput.incident_times(state)
    recovered = [each.mttr for each in times if each.mttr is not None]
    found.append(Sample(c.DETECTION, Spread(len(times), sum(each.mttd for each in times))))
    found.append(Sample(c.RECOVERY, Spread(len(recovered), sum(recovered))))
    found.append(Sample(c.LOST_STEPS, sum(each.lost_steps or 0 for each in times)))
    return found


def _time(state: RunState) -> list[Sample]:
    books = goodput.ledger(state)
    found = [Sample(c.RANK_TIME, ns / 1e9, (part,)) for part, ns in books.parts_ns.items()]
    if books.ettr is not None:
        found.append(Sample(c.EFFECTIVE, books.ettr))
    if books.step_seconds is not None:
        found.append(Sample(c.STEP_SECONDS, books.step_seconds))
    return found


def _checkpoint(state: RunState) -> list[Sample]:
    newest = state.newest_restore_point
    if newest is None:
        return []
    return [
        Sample(c.CHECKPOINT_STEP, newest.step),
        Sample(c.CHECKPOINT_TIME, newest.whole_ns / 1e9),
        Sample(c.CHECKPOINT_SECONDS, newest.seconds),
    ]
