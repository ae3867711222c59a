"""The one model behind every screen: what is known of a run, how it has gone, who was where.

Records go in one by one, from a live controller, a journal that grows or one that is replayed; the
same records make the same model. Pure.
"""

from collections.abc import Sequence

from harness import stacks
from harness.events import Record, StacksTaken
from harness.sightings import RankStack
from harness.state import RunState, fold
from harness.tui.history import History


class Model:
    """`apply` takes the next record; all else is read."""

    def __init__(self) -> None:
        self.state = RunState(judging=False)
        self.history = History()
        self.taken: dict[int, StacksTaken] = {}
        """By node: the answers to the newest request for stacks."""
        self.taken_ns = 0

    def apply(self, record: Record) -> None:
        fold(self.state, record)
        self.history.take(record, self.state)
        event = record.event
        if isinstance(event, StacksTaken):
            if any(before.request != event.request for before in self.taken.values()):
                self.taken.clear()
            self.taken[event.node_rank] = event
            self.taken_ns = record.stamp.wall_ns

    def stacks(self) -> tuple[Sequence[RankStack], int, str]:
        """The newest stacks of ranks, when they were taken, and for what: `asked for` or the reason
        of the evidence. Empty when none were taken yet."""
        collected = [c for c in self.state.collections if c.took_ns]
        newest = collected[-1] if collected else None
        if self.taken and (newest is None or self.taken_ns >= newest.ordered_ns):
            found = [stack for taken in self.taken.values() for stack in taken.stacks]
            return found, self.taken_ns, "asked for"
        if newest is None or newest.attempt >= len(self.state.attempts):
            return (), 0, ""
        ranks = self.state.attempts[newest.attempt].ranks.values()
        found = [
            stacks.of_evidence(rank.evidence, rank.pid)
            for rank in ranks
            if rank.evidence is not None
        ]
        return found, newest.ordered_ns, newest.why
