"""A recorded run through the pure core again, on a virtual clock.

What was decided then is left out: only what happened is fed in, at the time at which it was
recorded, and the core decides anew. A hang is an absence of records, so time goes on between them.

A controller on a busy machine comes to its decisions late, and by then it knows more: so the core
decides where that controller did, by its place in the journal and by its clock. Where it decided
nothing although today's core would, that happens a little later. Recordings without any decisions
are decided on at once.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from harness import events as e
from harness import orders as o
from harness.recovery.planning import next_wake_ns, plan
from harness.state import RunState, fold

_Answer = TypeVar("_Answer", bound=e.EvidenceTaken | e.EvidenceComplete)

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

_LATE_NS = 2_000_000_000
"""By this much a controller may have been late."""
_SOON_NS = 100_000_000
"""And by this much its clock may have gone on between a decision and its record."""
_NOBODY = -1


def replay(records: Iterable[e.Record]) -> RunState:
    """The state at the end, with the decisions of today's core instead of those of then.

    A decision that comes out otherwise than it did then meets facts that follow from the old one:
    what comes after the first difference says little.
    """
    again = _Replay()
    for record in records:
        if isinstance(record.event, DECIDED):
            again.decided(record.stamp.wall_ns, record.event)
        else:
            again.happened(record)
    again.advance(again.newest_ns)
    return again.state


class _Replay:
    """The core and its clock, which only goes on."""

    def __init__(self) -> None:
        self.state = RunState()
        self.newest_ns = 0
        """Of what has happened so far; the clock is behind where nothing was decided since."""
        self._now_ns = 0
        self._late_ns = 0
        self._since_ns: int | None = None
        """The first thing that has happened since the core was last asked."""
        self._seq = 0
        self._more = 0
        """Decisions of today's core that have no counterpart among those of then yet."""
        self._rounds: dict[int, int] = {}
        """Rounds of evidence of then -> those of today's core that they answer."""

    def decided(self, at_ns: int, then: e.Event) -> None:
        """The controller of then decided something here."""
        self._late_ns = _LATE_NS
        self.newest_ns = self._now_ns = max(self.newest_ns, self._now_ns, at_ns)
        self._settle()
        self._more -= 1
        if self._more < 0:
            self._wake_until(self.newest_ns + _SOON_NS)
            self._more = max(0, self._more)
        if isinstance(then, e.OrderGiven) and isinstance(then.order, o.CollectEvidence):
            self._rounds.setdefault(then.order.collection, self._round_of(then.order))

    def _round_of(self, order: o.CollectEvidence) -> int:
        """The newest round of today's core that was opened for the same and has no answers yet."""
        taken = self._rounds.values()
        alike = [c.index for c in self.state.collections if c.suspicion == order.suspicion]
        return max((index for index in alike if index not in taken), default=_NOBODY)

    def happened(self, record: e.Record) -> None:
        self.newest_ns = max(self.newest_ns, record.stamp.wall_ns)
        until_ns = self.newest_ns - self._late_ns
        if self._since_ns is not None and self._since_ns <= until_ns:
            self.advance(until_ns)
        else:
            self._wake_until(until_ns)
        fold(self.state, self._renumbered(record))
        if self._since_ns is None:
            self._since_ns = self.newest_ns
        if not self._late_ns:
            self.advance(self.newest_ns)

    def _renumbered(self, record: e.Record) -> e.Record:
        """Evidence is for the round that was opened in place of the one that asked for it."""
        event = record.event
        if isinstance(event, e.EvidenceOfNode):
            taken = tuple(map(self._in_its_round, event.taken))
            return replace(record, event=replace(event, taken=taken))
        if isinstance(event, e.EvidenceTaken | e.EvidenceComplete):
            return replace(record, event=self._in_its_round(event))
        return record

    def _in_its_round(self, event: _Answer) -> _Answer:
        now = self._rounds.get(event.collection, event.collection)
        return event if now == event.collection else replace(event, collection=now)

    def advance(self, until_ns: int) -> None:
        """Ask the core at its own deadlines up to a time, and then."""
        self._wake_until(until_ns)
        self._now_ns = max(self._now_ns, until_ns)
        self._settle()

    def _wake_until(self, until_ns: int) -> None:
        while (at_ns := next_wake_ns(self.state, self._now_ns)) is not None and at_ns <= until_ns:
            self._now_ns = at_ns
            self._settle()

    def _settle(self) -> None:
        self._since_ns = None
        while decisions := plan(self.state, self._now_ns):
            for decision in decisions:
                self._fold(decision)
            self._more += len(decisions)

    def _fold(self, decision: e.Event) -> None:
        attempt = len(self.state.attempts) - 1
        if isinstance(decision, e.AttemptStarted):
            attempt = decision.attempt
        stamp = e.Stamp(
            run="",
            attempt=max(attempt, 0),
            source="controller",
            seq=self._seq,
            wall_ns=self._now_ns,
            mono_ns=self._now_ns,
        )
        self._seq += 1
        fold(self.state, e.Record(stamp=stamp, event=decision))
