"""A recorded run through the pure core again, on a virtual clock.

What was decided then is left out: only what happened is fed in, at the time at which it was
recorded, and the core decides anew. A hang is an absence of records, so time goes on between them.
"""

from collections.abc import Iterable

from harness import events as e
from harness.recovery.planning import next_wake_ns, plan
from harness.state import RunState, fold

DECIDED = (
    e.OrderGiven,
    e.AttemptStarted,
    e.StallLooked,
    e.IncidentOpened,
    e.IncidentClosed,
    e.IncidentSettled,
    e.RunEnded,
    e.NodesAwaited,
    e.Regrouping,
    e.HostStruck,
)
"""What a controller decides; all else happens."""


def replay(records: Iterable[e.Record]) -> RunState:
    """The state at the end, with the decisions of today's core instead of those of then.

    A decision that comes out otherwise than it did then meets facts that follow from the old one:
    what comes after the first difference says little.
    """
    state, now_ns, seq = RunState(), 0, 0

    def settle() -> None:
        nonlocal seq
        while decisions := plan(state, now_ns):
            for decision in decisions:
                attempt = len(state.attempts) - 1
                if isinstance(decision, e.AttemptStarted):
                    attempt = decision.attempt
                stamp = e.Stamp(
                    run="",
                    attempt=max(attempt, 0),
                    source="controller",
                    seq=seq,
                    wall_ns=now_ns,
                    mono_ns=now_ns,
                )
                seq += 1
                fold(state, e.Record(stamp=stamp, event=decision))

    def advance(until_ns: int) -> None:
        nonlocal now_ns
        while (at_ns := next_wake_ns(state, now_ns)) is not None and at_ns <= until_ns:
            now_ns = at_ns
            settle()
        now_ns = max(now_ns, until_ns)

    for record in records:
        if isinstance(record.event, DECIDED):
            continue
        advance(record.stamp.wall_ns)
        fold(state, record)
        settle()
    return state
