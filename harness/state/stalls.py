"""Folding the suspicion that an attempt does not go on."""

from operator import attrgetter

from harness import events as e
from harness.state import booking
from harness.state.words import AttemptState, RankState, RunState, Stall

_advanced = attrgetter("advanced_ns")
_SURVEY_NS = 200_000_000
_PAST_STEPS, _PAST_CALLS = 10, 64
"""A rank with so many steps, or operations where there are no steps, is past its start."""


def pause_ended(attempt: AttemptState, rank: RankState, now_ns: int) -> None:
    """`rank` shows progress, for the first time since `rank.advanced_ns`."""
    if rank.step or rank.collectives:
        past_start = rank.step >= _PAST_STEPS or (not rank.step and rank.collectives >= _PAST_CALLS)
        attempt.pace.note(now_ns - rank.advanced_ns, past_start=past_start)
    attempt.begun = True


def survey(attempt: AttemptState, now_ns: int) -> None:
    """Keep `stillest_ns` true, a few times a second at most: it takes a look at every rank."""
    if now_ns - attempt.surveyed_ns < _SURVEY_NS:
        return
    attempt.surveyed_ns = now_ns
    running = (rank for rank in attempt.ranks.values() if rank.status == "running")
    stillest = min(running, key=_advanced, default=None)
    attempt.stillest_ns = 0 if stillest is None else stillest.advanced_ns
    heard_ns = 0 if stillest is None else attempt.heard_ns.get(stillest.node_rank, 0)
    attempt.stillest_heard_ns = heard_ns
    stall = attempt.stall
    if stall is not None and attempt.stillest_ns > stall.since_ns:
        _forgive(attempt, stall)


def _forgive(attempt: AttemptState, stall: Stall) -> None:
    """Everybody has moved on: that place takes its time."""
    if stall.look.place:
        took_ns = attempt.stillest_ns - stall.since_ns
        longest = max(took_ns, attempt.forgiven.get(stall.look.place, 0))
        attempt.forgiven[stall.look.place] = longest
    attempt.stall = None


def looked(state: RunState, attempt: AttemptState, event: e.StallLooked) -> None:
    """A look has made no verdict."""
    if not state.judging:
        survey(attempt, state.last_ns)  # as long as nothing is suspected it is not kept up
    booking.looked(attempt, event)
    if event.settled:
        attempt.looked = max(attempt.looked, event.collection)
    if attempt.stall is None:
        attempt.stall = Stall(since_ns=attempt.stillest_ns, look=event)
    else:
        attempt.stall.look = event
        attempt.stall.looks += 1


def answered(state: RunState, event: e.EvidenceComplete) -> None:
    """A node has sent all the evidence that it was asked for."""
    for collection in state.collections:
        if collection.index == event.collection:
            collection.waiting.discard(event.node_rank)
            collection.took_ns = state.last_ns - collection.ordered_ns
