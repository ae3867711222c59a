"""The places of groups where ranks met, and what came there in earlier rounds and elsewhere."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.collectives import Collective
from harness.diagnosis.scene import Scene, op_name
from harness.diagnosis.waits.compare import foretold
from harness.diagnosis.waits.past import call_of
from harness.diagnosis.waits.record import Call

UNKNOWN = 1 << 62
"""Sequence number of a place that nobody has on record: after all that are."""
_WHOLE_WORLD = "0"
"""Name of the default group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One place of one group, and what each rank recorded there; of some there is no record."""

    pg: str
    seq: int
    members: frozenset[int]
    entries: dict[int, Collective]

    @property
    def at_ns(self) -> int:
        return min(entry.created_ns for entry in self.entries.values())

    @property
    def calls(self) -> dict[int, Call]:
        return {rank: call_of(entry) for rank, entry in self.entries.items()}

    @property
    def missing(self) -> frozenset[int]:
        """Members without a record of it."""
        return self.members - self.entries.keys()

    @property
    def role(self) -> str:
        return next(iter(self.entries.values())).pg_desc

    @property
    def place(self) -> str:
        number = "a call after those on record" if self.seq == UNKNOWN else f"#{self.seq}"
        return f"{number} on {self.role or self.pg}"


def meetings_of(scene: Scene) -> list[Meeting]:
    """All places that anybody has on record."""
    groups = _groups(scene)
    found: dict[tuple[str, int, int], Meeting] = {}
    for rank in scene.attempt.ranks.values():
        if rank.evidence is None:
            continue
        for entry in rank.evidence.collectives:
            if op_name(entry).startswith(("send", "recv", "coalesced", "_coalesced")):
                continue
            for at, members in enumerate(groups.get(entry.pg, ())):
                if rank.rank in members:
                    key = entry.pg, entry.seq_id, at
                    if key not in found:
                        found[key] = Meeting(
                            pg=entry.pg, seq=entry.seq_id, members=members, entries={}
                        )
                    found[key].entries[rank.rank] = entry
                    break
    return list(found.values())


def _groups(scene: Scene) -> dict[str, list[frozenset[int]]]:
    """Members of the groups of each name. Groups of one name can differ from rank to rank, so a
    group that nobody has declared cannot be compared."""
    groups: dict[str, list[frozenset[int]]] = {}
    for group in scene.state.groups.values():
        groups.setdefault(group.pg, []).append(frozenset(group.ranks))
    groups.setdefault(_WHOLE_WORLD, [frozenset(range(scene.attempt.world_size))])
    return groups


def before(scene: Scene, rank: int, here: Meeting) -> list[Call]:
    """What `rank` had called on the group of `here` before it, in order."""
    evidence = scene.attempt.ranks[rank].evidence
    if evidence is None:
        return []
    earlier = [e for e in evidence.collectives if e.pg == here.pg and e.seq_id < here.seq]
    return [call_of(entry) for entry in sorted(earlier, key=lambda entry: entry.seq_id)]


class Elsewhere:
    """Other groups of the same role and size that did, up to a place, what the group there did."""

    def __init__(self, meetings: Sequence[Meeting]) -> None:
        self._of: dict[tuple[str, int], dict[frozenset[int], dict[int, Call]]] = {}
        for meeting in meetings:
            calls = set(meeting.calls.values())
            if len(calls) == 1:
                groups = self._of.setdefault((meeting.role, len(meeting.members)), {})
                groups.setdefault(meeting.members, {})[meeting.seq] = calls.pop()

    def next_after(self, here: Meeting, history: Sequence[Call], call: Call) -> Call | None:
        """What has to follow `call` at `here` after `history`: as there, else as in earlier rounds;
        None where it varies."""
        if (there := self.usual(here, ahead=1)) is not None and self.usual(here) == call:
            return there
        seen = {after for first, after in pairwise(history) if first == call}
        return seen.pop() if len(seen) == 1 else foretold([*history, call])

    def usual(self, here: Meeting, ahead: int = 0) -> Call | None:
        """What most of them called there, or `ahead` places later."""
        groups = self._of.get((here.role, len(here.members)), {})
        mine = groups.get(here.members, {})
        votes: Counter[Call] = Counter()
        for members, theirs in groups.items():
            common = [seq for seq in mine if seq < here.seq and seq in theirs]
            alike = common and all(mine[seq] == theirs[seq] for seq in common)
            if alike and members != here.members and here.seq + ahead in theirs:
                votes[theirs[here.seq + ahead]] += 1
        ranking = votes.most_common(2)
        tied = len(ranking) > 1 and ranking[0][1] == ranking[1][1]
        return ranking[0][0] if ranking and not tied else None
