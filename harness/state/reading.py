"""Folding what agents read of the ranks all the time: arrivals, vitals, what they run with."""

from harness import events as e
from harness.state import arrivals, clocks, growth
from harness.state.arrivals import Arrivals, GroupArrivals, Reached
from harness.state.growth import RankGrowth
from harness.state.words import AttemptState, RunState
from harness.topology import ranks_of

_STAGE_AXES = ("pp", "pipe", "stage")
_JUDGE_NS = 900_000_000
_RECENT_STEPS = 4
_MOST_GPU_ERRORS = 1000
"""The first ones tell; a dying GPU goes on for hours."""


def arrivals_read(state: RunState, stamp: e.Stamp, event: e.ArrivalsRead) -> None:
    attempt = _attempt(state, stamp)
    if attempt is None:
        return
    if not state.judging:
        _how_far(state, attempt, event)
        return
    seen = attempt.arrivals
    seen.ref = (stamp.source, stamp.seq)
    offset_ns = _offset_ns(state, event.node_rank)
    done: list[tuple[GroupArrivals, int]] = []
    for rank in event.ranks:
        if rank.rank not in attempt.ranks:
            continue
        if rank.peers:
            seen.peers[rank.rank] = frozenset(rank.peers)
        _note_stage(state, seen, rank.rank)
        calls = [event.calls[at] for at in rank.calls] or [""] * len(rank.records)
        for record, at, seq, entered_us, call in zip(
            rank.records, rank.groups, rank.seqs, rank.entered_us, calls, strict=False
        ):
            group = _group(state, attempt, event.groups[at], rank.rank)
            if group is None or (offset_ns is None and group.slack_ns):
                continue
            group.op = event.ops[at]
            at_ns = event.base_ns + entered_us * 1000 - (offset_ns or 0)
            if arrivals.enter(seen, rank.rank, record, group, seq, at_ns, call):
                done.append((group, seq))
    _note_steps(seen)
    arrivals.complete(seen, done)


def _how_far(state: RunState, attempt: AttemptState, event: e.ArrivalsRead) -> None:
    """Only which collective of each group a rank came to last, whenever that was."""
    for rank in event.ranks:
        if rank.rank not in attempt.ranks:
            continue
        newest = dict(zip(rank.groups, rank.seqs, strict=False))  # in the rank's own order
        for at, seq in newest.items():
            group = _reached(state, attempt, event.groups[at], rank.rank)
            if group is not None:
                group.op = event.ops[at]
                group.seqs[rank.rank] = seq


def _reached(state: RunState, attempt: AttemptState, pg: str, rank: int) -> Reached | None:
    made = state.group_of.get(pg, {}).get(rank)
    if made is None:
        return None
    key = pg, made.rank
    group = attempt.arrivals.reached.get(key)
    if group is None and attempt.ranks.keys() >= {*made.ranks}:
        seqs = dict.fromkeys(sorted(made.ranks), -1)
        group = attempt.arrivals.reached[key] = Reached(pg=pg, desc=made.pg_desc, seqs=seqs)
    return group


def _attempt(state: RunState, stamp: e.Stamp) -> AttemptState | None:
    known = 0 <= stamp.attempt < len(state.attempts)
    return state.attempts[stamp.attempt] if known else None


def _offset_ns(state: RunState, node_rank: int) -> int | None:
    head, node = state.nodes.get(clocks.HEAD_NODE), state.nodes.get(node_rank)
    if head is not None and node is not None and head.host == node.host:
        return 0
    return state.clocks.offset_ns(node_rank)


def _note_stage(state: RunState, seen: Arrivals, rank: int) -> None:
    for axis, place in state.coordinates.get(rank, {}).items():
        if any(name in axis.lower() for name in _STAGE_AXES):
            seen.stages[rank] = place


def _group(state: RunState, attempt: AttemptState, pg: str, rank: int) -> GroupArrivals | None:
    """The group of that name with that rank in it; None while its members are not known."""
    seen = attempt.arrivals
    if (pg, rank) in seen.groups:
        return seen.groups[pg, rank]
    made = state.group_of.get(pg, {}).get(rank)
    if made is None or not attempt.ranks.keys() >= {*made.ranks}:
        return None
    nodes = {attempt.ranks[member].node_rank for member in made.ranks}
    hosts = {state.nodes[node].host if node in state.nodes else node for node in nodes}
    group = GroupArrivals(
        pg=pg,
        desc=made.pg_desc,
        members=tuple(sorted(made.ranks)),
        slack_ns=clocks.SLACK_NS if len(hosts) > 1 else 0,
    )
    seen.groups.update({(pg, member): group for member in group.members})
    return group


def _note_steps(seen: Arrivals) -> None:
    """When the rank that is furthest had completed how many steps, and what one takes lately."""
    if seen.furthest <= (seen.steps[-1][1] if seen.steps else 0):
        return
    seen.steps.append((seen.furthest_ns, seen.furthest))
    before_ns, before = seen.steps[max(0, len(seen.steps) - _RECENT_STEPS)]
    if seen.furthest > before:
        seen.step_ns = max(0, seen.furthest_ns - before_ns) // (seen.furthest - before)


def vitals_read(state: RunState, stamp: e.Stamp, event: e.VitalsRead) -> None:
    attempt = _attempt(state, stamp)
    if attempt is None:
        return
    seen = attempt.growth
    seen.ref = (stamp.source, stamp.seq)
    seen.available[event.node_rank] = event.memory_available_bytes
    for vitals in event.vitals:
        rank = attempt.ranks.get(vitals.rank)
        if rank is None or not (vitals.step or vitals.collectives):
            continue  # what the start takes is no growth
        grown = seen.ranks.setdefault(rank.rank, RankGrowth(node_rank=event.node_rank))
        growth.note(grown, vitals, stamp.wall_ns, judged=state.judging)
    due = stamp.wall_ns - seen.judged_ns >= _JUDGE_NS
    if due and (seen.leaks or any(grown.trends for grown in seen.ranks.values())):
        seen.judged_ns = stamp.wall_ns
        growth.judge(seen, attempt.world_size)


def setups_read(state: RunState, stamp: e.Stamp, event: e.SetupsRead) -> None:
    attempt = _attempt(state, stamp)
    if attempt is None:
        return
    for setup in event.setups:
        attempt.setups.update(
            {rank: setup for rank in ranks_of(setup.ranks) if rank in attempt.ranks}
        )


def gpus_read(state: RunState, stamp: e.Stamp, event: e.GpusRead | e.GpuFailed) -> None:
    if isinstance(event, e.GpusRead):
        state.gpus[event.node_rank] = event.gpus
        return
    attempt = _attempt(state, stamp)
    if attempt is not None and len(attempt.gpu_errors) < _MOST_GPU_ERRORS:
        attempt.gpu_errors.append((event, (stamp.source, stamp.seq)))
