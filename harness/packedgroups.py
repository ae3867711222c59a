"""Process groups in a line of evidence of a node (`harness.packing`): each is there once, with its
members as runs, and is made of it once for all nodes that tell of it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from harness.columns import MadeGroup
from harness.topology import MOST_RANKS, Runs, ranks_of

K = TypeVar("K")
T = TypeVar("T")

MOST_MEMBERS = 16 * MOST_RANKS
"""Of all groups in one line, and of those that are remembered."""
_WEIGHS = 1024
"""What else there is of a remembered group, in members."""


class _Group(msgspec.Struct):
    pg: str
    pg_desc: str
    ranks: Runs
    member: bool
    failed: bool


_groups = msgspec.json.Decoder(_Group)


def groups_of(raw: Sequence[msgspec.Raw]) -> list[MadeGroup]:
    """Those of a line. Raises msgspec.ValidationError."""
    found: list[MadeGroup] = []
    members = 0
    for each in raw:
        group = _group_kept[bytes(each)]
        found.append(group)
        members += len(group.ranks)
        if members > MOST_MEMBERS and _held(found) > MOST_MEMBERS:
            raise msgspec.ValidationError("more members of groups than a run can have")
    return found


def _held(groups: Sequence[MadeGroup]) -> int:
    """Members of all of them, those of the same ranks once."""
    return sum(map(len, {id(group.ranks): group.ranks for group in groups}.values()))


def _group(raw: bytes) -> MadeGroup:
    it = _groups.decode(raw)
    return MadeGroup(
        pg=it.pg, pg_desc=it.pg_desc, ranks=_members_kept[it.ranks], member=it.member,
        failed=it.failed,
    )  # fmt: skip


def _members(runs: Runs) -> tuple[int, ...]:
    if any(count < 1 for _, _, count in runs):
        raise msgspec.ValidationError("a run of less than one rank")
    if sum(count for _, _, count in runs) > MOST_RANKS:
        raise msgspec.ValidationError(f"a group of more than {MOST_RANKS} ranks")
    ends = [end for first, step, count in runs for end in (first, first + step * (count - 1))]
    if ends and not 0 <= min(ends) <= max(ends) < MOST_RANKS:
        raise msgspec.ValidationError("a rank that no run has")
    # Those of thousands of groups are the same objects: quick to compare, and small.
    number = _numbers.until(max(ends, default=0)).__getitem__
    return tuple([number(rank) for rank in ranks_of(runs)])


class _Numbers:
    """Numbers of ranks, each of them one object however often somebody asks."""

    def __init__(self) -> None:
        self._known: tuple[int, ...] = ()

    def until(self, last: int) -> tuple[int, ...]:
        """All from 0 on, `last` at least among them."""
        known = self._known
        if last >= len(known):
            self._known = known = (*known, *range(len(known), 1 << last.bit_length()))
        return known


class _Kept(dict[K, T]):
    """What was made before, by what it was made of; all is forgotten when it gets much."""

    def __init__(self, make: Callable[[K], T], size: Callable[[T], int]) -> None:
        self._make, self._size, self._kept = make, size, 0

    def __missing__(self, key: K) -> T:
        thing = self._make(key)
        self._kept += self._size(thing)
        if self._kept > MOST_MEMBERS:
            self.clear()
            self._kept = self._size(thing)
        self[key] = thing
        return thing


_numbers = _Numbers()
_members_kept = _Kept(_members, lambda ranks: len(ranks) + _WEIGHS)
_group_kept = _Kept(_group, lambda group: len(group.ranks) + _WEIGHS)
