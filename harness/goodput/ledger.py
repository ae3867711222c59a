"""The ledger: every nanosecond of every rank in exactly one part (docs/ledger.md).

The fold has booked what is certain (`harness.state.booking`). Here the rest of each rank's time is
told apart by the moments of its attempt: onset, evidence and verdict of its incident, the end of
its workers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.goodput.times import decisive_incident
from harness.state import AttemptState, RankState, RunState
from harness.state.booking import part_of

PARTS = (
    "useful",
    "checkpoint",
    "recompute",
    "stall",
    "straggler",
    "detect",
    "diagnose",
    "stop",
    "rendezvous",
    "start",
    "init",
    "load",
)
"""useful: steps that count, evaluation. checkpoint: training stood still for a save. recompute:
steps done again, and those that a failure cut off. stall: waits that were suspected and passed.
straggler: waits for a rank that is known to be late. detect: onset of an incident to its evidence.
diagnose: evidence to verdict. stop: verdict to the last process gone, and the end of a run.
rendezvous: waiting for nodes and the store. start: launch to a worker's first sign. init: from
there to the first step. load: reading a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """`parts_ns` sums to `total_ns`: the wall time times the ranks, added up over the attempts.

    `steps` and `steps_ns` are the steps that were seen from beginning to end, over all ranks, and
    what they took. `known`: some progress was seen.
    """

    wall_ns: int
    ranks: int
    total_ns: int
    parts_ns: Mapping[str, int]
    steps: int
    steps_ns: int
    known: bool

    @property
    def ettr(self) -> float | None:
        """Useful share of the time, 0 to 1; None where nothing is known of the progress."""
        if not self.total_ns or not self.known:
            return None
        return self.parts_ns["useful"] / self.total_ns

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step."""
        return self.steps_ns / self.steps / 1e9 if self.steps else None


def ledger(state: RunState) -> Ledger:
    """The ledger of `state`: of a live run up to its newest record. Costs a look at every rank."""
    end_ns = max(state.ended_ns or state.last_ns, state.started_ns)
    parts = dict.fromkeys(PARTS, 0)
    stepless = is_stepless(state)
    first_ns = end_ns
    steps = steps_ns = 0
    for attempt, from_ns, until_ns in _windows(state, end_ns):
        first_ns = min(first_ns, from_ns)
        tail = _tail(state, attempt, until_ns)
        for rank in attempt.ranks.values():
            _add(parts, _rank_parts(attempt, rank, stepless, tail), until_ns - from_ns)
            steps += rank.books.steps
            steps_ns += rank.books.useful + rank.books.recompute + rank.books.straggler
    parts["rendezvous"] += (first_ns - state.started_ns) * _first_ranks(state)
    return Ledger(
        wall_ns=end_ns - state.started_ns,
        ranks=_ranks(state),
        total_ns=sum(parts.values()),
        parts_ns=parts,
        steps=steps,
        steps_ns=steps_ns,
        known=not stepless or parts["useful"] > 0,
    )


def ettr(state: RunState, now_ns: int) -> float | None:
    """Much the same as `Ledger.ettr` at `now_ns` in constant time: steps under way do not count."""
    if not state.attempts or is_stepless(state):
        return None
    now_ns = state.ended_ns or now_ns
    total = useful = 0
    for attempt, from_ns, until_ns in _windows(state, now_ns):
        total += (until_ns - from_ns) * attempt.world_size
        useful += attempt.moments.useful_ns
    total += max(0, state.attempts[0].started_ns - state.started_ns) * _first_ranks(state)
    return min(1.0, useful / total) if total > 0 else None


def is_stepless(state: RunState) -> bool:
    """No rank has made an optimizer step: operations are all that is known of the progress."""
    return not any(attempt.moments.begun_ns for attempt in state.attempts)


def _windows(state: RunState, end_ns: int) -> Iterator[tuple[AttemptState, int, int]]:
    """Each attempt from its start to that of the next; the last one to the end."""
    for at, attempt in enumerate(state.attempts):
        last = at + 1 == len(state.attempts)
        until_ns = end_ns if last else min(state.attempts[at + 1].started_ns, end_ns)
        from_ns = min(attempt.started_ns, end_ns)
        yield attempt, from_ns, max(until_ns, from_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """How an attempt ends for all of its ranks: work goes on until `cut_ns`, and then each part
    lasts until its time. `failed`: what was under way is lost. `live`: it is under way still."""

    cut_ns: int
    parts: tuple[tuple[str, int], ...]
    failed: bool = False
    live: bool = False


def _tail(state: RunState, attempt: AttemptState, until_ns: int) -> _Tail:
    incident = decisive_incident(state, attempt.index)
    if incident is not None:
        onset_ns = incident.verdict.onset_ns
        stopped_ns = attempt.stopped_ns or until_ns
        after = "rendezvous" if attempt is not state.attempt or state.stage == "storing" else "stop"
        return _Tail(
            cut_ns=min(onset_ns, until_ns),
            parts=(
                ("detect", _evidence_ns(state, attempt, incident.id) or incident.detected_ns),
                ("diagnose", incident.detected_ns),
                ("stop", stopped_ns),
                (after, until_ns),
            ),
            failed=incident.exit_code != 0 or incident.action != "stop",
        )
    if attempt.stop_ordered_ns:
        return _Tail(cut_ns=min(attempt.stop_ordered_ns, until_ns), parts=(("stop", until_ns),))
    ended = state.ended is not None
    if attempt.trouble_ns and not ended:
        evidence_ns = _evidence_ns(state, attempt, None) or until_ns
        parts = (("detect", evidence_ns), ("diagnose", until_ns))
        return _Tail(cut_ns=min(attempt.trouble_ns, until_ns), parts=parts, failed=True)
    return _Tail(cut_ns=until_ns, parts=(("stop", until_ns),), live=not ended)


def _evidence_ns(state: RunState, attempt: AttemptState, incident: int | None) -> int:
    """When the evidence of a verdict was asked for; of the one to come without `incident`. 0: it
    was not."""
    for collection in reversed(state.collections):
        if collection.attempt != attempt.index:
            continue
        if collection.incident == incident or (incident is None and not collection.suspicion):
            return collection.ordered_ns
    return 0


_BOOKED = (
    "useful", "checkpoint", "recompute", "stall", "straggler", "stop", "start", "init", "load"
)  # fmt: skip


def _rank_parts(
    attempt: AttemptState, rank: RankState, stepless: bool, tail: _Tail
) -> dict[str, int]:
    """The whole time of `rank` in the attempt."""
    books = rank.books
    parts = {part: getattr(books, part) for part in _BOOKED}
    parts["useful" if stepless else "init"] += books.operations
    at_ns = books.until_ns

    def book(part: str, until_ns: int) -> None:
        nonlocal at_ns
        if until_ns > at_ns:
            parts[part] = parts.get(part, 0) + until_ns - at_ns
            at_ns = until_ns

    if at_ns < tail.cut_ns:
        part = part_of(attempt, rank)
        if part == "start" and rank.started_ns and _silent(rank):
            book("start", min(rank.started_ns, tail.cut_ns))
            part = "init"
        if part == "init" and stepless and books.operations:
            part = "useful"
        _work(rank, part, tail, book)
    for part, until_ns in tail.parts:
        book(part, until_ns)
    if books.late and parts.get("useful", 0) > books.useful:
        wasted = int((parts["useful"] - books.useful) * books.late)
        parts["useful"] -= wasted
        parts["straggler"] += wasted
    return parts


def _silent(rank: RankState) -> bool:
    """A program without our guest never gives a sign."""
    return not rank.heartbeat_ns


def _work(rank: RankState, part: str, tail: _Tail, book: Callable[[str, int], None]) -> None:
    """What was under way until the cut."""
    exited = rank.exited
    until_ns = tail.cut_ns
    if exited is not None and not exited.ordered:
        until_ns = min(until_ns, exited.exited_ns)
    if rank.books.waits_ns and (tail.live or tail.failed):
        book(part, min(rank.books.waits_ns, until_ns))
        book("stall", until_ns)
    elif part in ("useful", "recompute") and tail.failed:
        book("recompute", until_ns)
    elif part in ("useful", "recompute") and not tail.live:
        # After the last step, as far as it was still seen to advance.
        book(part, min(rank.advanced_ns, until_ns))
    else:
        book(part, until_ns)
    if until_ns < tail.cut_ns or not (tail.live or tail.failed):
        book("stop", tail.cut_ns)


def _add(parts: dict[str, int], of_rank: Mapping[str, int], window_ns: int) -> None:
    """Add the parts of one rank. A clock that ran ahead may have booked more than there was."""
    over = sum(of_rank.values()) - window_ns
    for part, ns in of_rank.items():
        taken = min(ns, over) if over > 0 else 0
        over -= taken
        parts[part] += ns - taken


def _first_ranks(state: RunState) -> int:
    """Ranks of the first attempt, or those that have come for it."""
    if state.attempts:
        return state.attempts[0].world_size
    return _joined(state)


def _ranks(state: RunState) -> int:
    return state.attempts[-1].world_size if state.attempts else _joined(state)


def _joined(state: RunState) -> int:
    return max(1, sum(node.local_world_size for node in state.nodes.values()))
