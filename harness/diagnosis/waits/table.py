"""Group by group: how far its members have come, who is missing and who differs."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.diagnosis.waits.compare import odd_by_replicas, odd_ones
from harness.diagnosis.waits.disagree import first_difference
from harness.diagnosis.waits.graph import Members
from harness.diagnosis.waits.record import Call, Group, Track, Waits
from harness.diagnosis.waits.root import table


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """`seq` is the furthest collective that any member called, `call` what it is. `missing` have
    not called it, `silent` left no record. `differ` are the odd ones at `differs_at`, the first
    place at which the members' calls are not the same; -1 for none."""

    group: Group
    members: tuple[int, ...]
    seq: int
    call: Call | None
    finished: int
    """The furthest collective that all members with a record have finished."""
    missing: tuple[int, ...]
    silent: tuple[int, ...]
    differ: tuple[int, ...] = ()
    differs_at: int = -1
    differing: str = ""

    @property
    def troubled(self) -> bool:
        return bool(self.missing or self.differ or self.finished < self.seq)


def group_states(waits: Waits) -> list[GroupState]:
    """All groups with collectives on record, those in trouble first."""
    members = Members(waits)
    tracks: dict[Group, dict[int, Track]] = {}
    for rank, wait in waits.ranks.items():
        for group, track in wait.tracks.items():
            if members.track(rank, group) is not None and track.enqueued >= 0:
                tracks.setdefault(group, {})[rank] = track
    states = [_state(waits, members, group, of) for group, of in tracks.items()]
    return sorted(states, key=lambda s: (not s.troubled, -len(s.members), _order(s.group.name)))


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 18 else (1 << 62, name)


def _state(waits: Waits, members: Members, group: Group, of: Mapping[int, Track]) -> GroupState:
    everybody = members.of(group)
    furthest = max(of.values(), key=lambda track: track.enqueued)
    recorded = [rank for rank in everybody if rank in waits.ranks]
    missing = [r for r in recorded if r not in of or of[r].enqueued < furthest.enqueued]
    differ: tuple[int, ...] = ()
    at = first_difference(of)
    calls: dict[int, Call] = {}
    if at is not None:
        calls = {rank: call for rank, track in of.items() if (call := track.at(at)) is not None}
        odd, usual = odd_ones(calls)
        if usual is None:
            odd, _ = odd_by_replicas(waits, group, at, calls)
        differ = tuple(odd)
    return GroupState(
        group=group,
        members=everybody,
        seq=furthest.enqueued,
        call=furthest.at(furthest.enqueued),
        finished=min((of[r].completed if r in of else -1) for r in recorded),
        missing=tuple(missing),
        silent=tuple(rank for rank in everybody if rank not in waits.ranks),
        differ=differ,
        differs_at=-1 if at is None else at,
        differing="" if at is None else table(calls),
    )
