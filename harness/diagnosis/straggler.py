"""straggler: the others wait for the same ranks again and again, and these are late by their own
doing. unsynchronised_pauses: they wait now for one, now for another.

`harness.state.arrivals` keeps the sums.
"""

from harness.diagnosis.signature import Signature
from harness.incidents import CollectiveRef, EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.arrivals import Arrivals, GroupArrivals, step_at
from harness.state.growth import ALONE_BYTES
from harness.state.waits import Streak, Turns
from harness.topology import ranks_name

_UNTOLD_NS = 15_000_000_000
"""By then growth is known for a leak or has not been even."""
_FIRST_ROUNDS = 3
"""The first rounds of a group are those of building a model, and slow on every rank."""


def find(attempt: AttemptState) -> list[Finding]:
    """Stragglers first, the worst first; nothing while no group is suspected."""
    seen = attempt.arrivals
    if not seen.suspects:
        return []
    late = [
        (group, streak)
        for group in seen.suspects.values()
        if (streak := group.waits.long_streak) is not None and not _fills_memory(attempt, streak)
    ]
    if late:
        late.sort(key=lambda pair: -pair[1].waited_ns / max(1, pair[1].length_ns))
        return [_straggler(attempt, *late[0], _inseparable(seen, late))]
    turns = [
        (group, group.waits.turns)
        for group in seen.suspects.values()
        if group.waits.turns is not None
    ]
    if not turns:
        return []
    turns.sort(key=lambda pair: -pair[1].waited_ns)
    return [_pauses(attempt, *turns[0])]


def _fills_memory(attempt: AttemptState, streak: Streak) -> bool:
    """Whether one of them takes more and more memory, which takes time: then that is what is wrong
    with it (resource_leak_memory), and is told when it is certain."""
    growth = attempt.growth
    if set(streak.ranks) & set(growth.leaks.get("memory", ())):
        return True
    known = [growth.ranks[rank] for rank in streak.ranks if rank in growth.ranks]
    grown = max((seen.since("memory", streak.first_ns) for seen in known), default=0)
    return grown >= ALONE_BYTES and streak.last_ns - streak.first_ns < _UNTOLD_NS


def _inseparable(seen: Arrivals, late: list[tuple[GroupArrivals, Streak]]) -> tuple[int, ...]:
    """The worst straggler, and all late ranks that exchange tensors with it: one of them may only
    have waited for what another was to send."""
    ranks = set(late[0][1].ranks)
    others = {rank for _, streak in late for rank in streak.ranks}
    while True:
        linked = {other for rank in ranks for other in seen.peers.get(rank, ()) if other in others}
        if linked <= ranks:
            return tuple(sorted(ranks))
        ranks |= linked


def _straggler(
    attempt: AttemptState, group: GroupArrivals, streak: Streak, ranks: tuple[int, ...]
) -> Finding:
    seen = attempt.arrivals
    who, alone = ranks_name(ranks), len(ranks) == 1
    each_ns = streak.waited_ns / max(1, streak.rounds)
    share = streak.waited_ns / max(1, streak.length_ns)
    began = _since(attempt, group, streak)
    costs = f", {_seconds(share * seen.step_ns)} of every step" if seen.step_ns else ""
    what = f"{group.op} on {group.desc or group.pg}"
    cause = (
        f"{who} {'comes' if alone else 'come'} to {what} {_seconds(each_ns)} after the others,"
        f" {began}; they wait for it {share:.0%} of the time{costs}"
    )
    reason = (
        f"in {streak.hits} of {streak.slices} stretches of time over"
        f" {_seconds(streak.last_ns - streak.first_ns)} the others waited for {who}; from the end"
        f" of the previous operation on, {who} took that much longer than they did"
    )
    if len(ranks) > len(streak.ranks):
        reason += "; they exchange tensors, so that which of them holds up the other is not known"
    if group.slack_ns:
        reason += "; the clocks of the nodes were compared"
    return Finding(
        wait_share=share,
        verdict="straggler",
        ranks=ranks,
        cause=cause,
        reason=reason,
        confidence="likely" if len(ranks) == len(streak.ranks) else "possible",
        onset_ns=streak.first_ns,
        evidence=_evidence(seen),
        collective=_collective(group, streak.first_seq),
        signature=Signature(verdict="straggler", what="late", place=group.desc).text(),
        victims=tuple(rank for rank in group.members if rank not in ranks),
    )


def _pauses(attempt: AttemptState, group: GroupArrivals, turns: Turns) -> Finding:
    seen = attempt.arrivals
    ranks = tuple(turns.counts)
    total = sum(turns.counts.values())
    counts = ", ".join(f"rank {rank} {count} times" for rank, count in turns.counts.items())
    shown = (
        counts if len(ranks) <= 8 else f"{total} times, {min(turns.counts.values())} or more each"
    )
    share = turns.waited_ns / max(1, turns.length_ns)
    began = _since(attempt, group, turns)
    return Finding(
        verdict="unsynchronised_pauses",
        ranks=ranks,
        cause=(
            f"{ranks_name(ranks)} pause at different times, {_seconds(turns.usual_ns)} each"
            f" ({shown}), {began}; the others wait each time, {share:.0%} of the time together:"
            " let all pause at once (gc.disable() and gc.collect() every so many steps)"
        ),
        reason=(
            f"{total} times in {_seconds(turns.length_ns)} one rank came to {group.op} after all"
            " others by its own doing, another rank the next time, and each time about as late"
        ),
        confidence="likely",
        onset_ns=turns.first_ns,
        evidence=_evidence(seen),
        collective=_collective(group, turns.first_seq),
        signature=Signature(
            verdict="unsynchronised_pauses", what="pauses", place=group.desc
        ).text(),
        victims=tuple(rank for rank in group.members if rank not in ranks),
    )


def _since(attempt: AttemptState, group: GroupArrivals, what: Streak | Turns) -> str:
    """`since all_reduce #21`, with the step where steps are counted."""
    if what.before <= _FIRST_ROUNDS:
        return "from the start"
    step = step_at(attempt.arrivals, what.first_ns)
    about = "" if step is None else f", about step {step}"
    return f"since {group.op} #{what.first_seq}{about}"


def _seconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:.2g} s"


def _collective(group: GroupArrivals, seq: int) -> CollectiveRef:
    return CollectiveRef(pg=group.pg, pg_desc=group.desc, op=group.op, seq_id=seq)


def _evidence(seen: Arrivals) -> tuple[EvidenceRef, ...]:
    source, seq = seen.ref
    return (EvidenceRef(source=source, seq=seq, shows="when each rank came to its collectives"),)
