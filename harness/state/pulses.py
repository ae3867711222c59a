"""Folding pulses: what ranks show of themselves, thousands of times a second in a large run."""

from sys import intern

from harness import events as e
from harness.sightings import Pulse
from harness.state import booking, stalls
from harness.state.words import AttemptState, RunState


def read(state: RunState, stamp: e.Stamp, event: e.PulsesRead) -> None:
    """The pulses of a node have come."""
    if not 0 <= stamp.attempt < len(state.attempts):
        return
    attempt, now_ns = state.attempts[stamp.attempt], state.last_ns
    ranks, seen, wall_ns = attempt.ranks, attempt.arrivals, stamp.wall_ns
    judging = state.judging
    for pulse in event.pulses:
        rank = ranks.get(pulse.rank)
        if rank is None:
            continue
        step, phase, collectives = pulse.step, pulse.phase, pulse.collectives
        books = rank.books
        if step != rank.step or phase != rank.phase or books.waits_ns or not books.at_work:
            booking.pulse(attempt, rank, pulse, wall_ns)  # else it books nothing
        if step != rank.step or collectives != rank.collectives or phase != rank.phase:
            if judging:
                stalls.pause_ended(attempt, rank, now_ns)
            rank.advanced_ns = now_ns
            if phase != rank.phase:
                rank.phase, rank.phase_ns = intern(phase), wall_ns
            if step and not attempt.first_step_ns:
                _first_step(attempt, pulse, wall_ns)
            if step > seen.furthest and pulse.step_ns:
                seen.furthest, seen.furthest_ns = step, pulse.step_ns
            rank.step, rank.collectives = step, collectives
        rank.step_ns, rank.tokens, rank.total_steps = pulse.step_ns, pulse.tokens, pulse.total_steps
        rank.loss, rank.loss_finite = pulse.loss, pulse.loss_finite
        rank.heartbeat_ns = pulse.heartbeat_ns
        if pulse.asked_stop > rank.asked_stop:
            rank.asked_stop = pulse.asked_stop
    attempt.heard_ns[event.node_rank] = now_ns
    if judging or attempt.stall is not None:
        stalls.survey(attempt, now_ns)


def _first_step(attempt: AttemptState, pulse: Pulse, wall_ns: int) -> None:
    """A rank that has just loaded a checkpoint shows that step without having completed it now."""
    at_ns = pulse.step_ns or wall_ns
    if pulse.step != attempt.resumed_step and at_ns >= attempt.started_ns:
        attempt.first_step_ns = at_ns
