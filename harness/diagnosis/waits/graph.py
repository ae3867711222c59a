"""The wait-for graph: ranks, the operations they stand in, and whom each operation lacks.

All waiters of an operation share its one node, so the graph grows with the sizes of the groups
that are waited in, not with the square of the number of ranks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from harness.diagnosis.waits.compare import (
    odd_by_condition,
    odd_by_history,
    odd_by_replicas,
    odd_ones,
)
from harness.diagnosis.waits.record import Call, Creation, Group, Pending, RankWait, Track, Waits

WORLD = "default_pg"
_NO_TRACK = Track()


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation that somebody stands in.

    `missing` have not called it, `behind` have but stand in an earlier call of theirs, `differ`
    called something else at its place, `silent` left no record. `tied` says that `differ` holds
    all who called because their number does not tell who is wrong.
    """

    group: Group
    seq: int
    call: Call
    members: tuple[int, ...]
    onset_ns: int
    p2p: bool = False
    creation: bool = False
    waiters: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    differ: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    calls: Mapping[int, Call] = field(default_factory=dict)
    usual: Call | None = None
    tied: bool = False
    weak: bool = False
    """What it lacks is a guess: the records do not reach back to the first operation."""
    surplus: bool = False
    """Its rank has more of the kind pending than the other end: the oldest may be done there."""

    @property
    def lacks(self) -> tuple[int, ...]:
        """Ranks that this operation waits for. A rank without a record is one only when nothing
        on record explains the wait."""
        return (*self.missing, *self.behind, *self.differ) or self.silent


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGraph:
    """`stands[rank]` are indices into `ops`: more than one for a batch of point-to-point."""

    waits: Waits
    ops: tuple[Op, ...]
    stands: Mapping[int, tuple[int, ...]]


class Members:
    """Who is in a group, also where the records do not say so."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._world = tuple(range(waits.world_size))
        self._guessed: dict[tuple[str, str], tuple[int, ...]] = {}
        self.carries_p2p = {
            (op.group.name, op.group.desc)
            for wait in waits.ranks.values()
            for op in wait.pending
            if op.peers
        }

    def of(self, group: Group) -> tuple[int, ...]:
        """Global ranks. Of a group that nobody declares, those that have used it, and those that
        may be in it: a rank is in one group of a role, and groups of a role are of one size."""
        if group.ranks is not None:
            return group.ranks
        if group.desc == WORLD or group.name == "0":
            return self._world
        key = (group.name, group.desc)
        if key not in self._guessed:
            self._guessed[key] = self._guess(key)
        return self._guessed[key]

    @cached_property
    def _known(self) -> dict[tuple[str, str], set[int]]:
        """Who has used a group."""
        known: dict[tuple[str, str], set[int]] = {}
        for rank, wait in self._waits.ranks.items():
            for group in wait.tracks:
                known.setdefault((group.name, group.desc), set()).add(rank)
        return known

    def _guess(self, key: tuple[str, str]) -> tuple[int, ...]:
        known = self._known.get(key, set())
        siblings = [ranks for other, ranks in self._known.items() if other[1] == key[1]]
        placed = set().union(*siblings)
        free = self._waits.ranks.keys() - placed
        lacks = (
            max(len(ranks) for ranks in siblings) - len(known) if len(siblings) > 1 else len(free)
        )
        if lacks <= 0 or key[1] in ("", "undefined"):
            return tuple(sorted(known))
        return tuple(sorted(known | (free if len(free) <= lacks else set())))

    def track(self, rank: int, group: Group) -> Track | None:
        """What `rank` recorded of `group`, which it may know without its members."""
        wait = self._waits.ranks.get(rank)
        if wait is None:
            return None
        track = wait.tracks.get(group)
        if track is None:
            other = Group(name=group.name, desc=group.desc)
            track = wait.tracks.get(other) if group.ranks is not None else None
        if track is not None and not track.calls and (group.name, group.desc) in self.carries_p2p:
            return None  # a count without calls mixes collectives and point-to-point
        return track


def build(waits: Waits) -> WaitGraph:
    """The graph of all that is pending."""
    members = Members(waits)
    keys: dict[tuple[object, ...], int] = {}
    ops: list[Op] = []
    stands: dict[int, list[int]] = {}
    waiters: list[list[int]] = []
    alike: dict[tuple[int, int], int] = {}
    """Collectives that somebody stands in and nothing else, by identity of the group and number:
    of thousands of ranks most stand in a few."""
    for rank, wait in sorted(waits.ranks.items()):
        head = wait.head
        same = None
        if head is not None and not (head.peers or wait.creating or wait.ended or wait.frozen):
            same = id(head.group), head.seq
            if (at := alike.get(same)) is not None:
                waiters[at].append(rank)
                stands[rank] = [at]
                continue
        for key, make in _heads(waits, members, wait):
            at = keys.get(key)
            if at is None:
                at = keys[key] = len(ops)
                ops.append(make())
                waiters.append([])
            waiters[at].append(rank)
            stands.setdefault(rank, []).append(at)
            if same is not None:
                alike[same] = at
    return WaitGraph(
        waits=waits,
        ops=tuple(
            replace(op, waiters=tuple(ranks)) for op, ranks in zip(ops, waiters, strict=True)
        ),
        stands={rank: tuple(found) for rank, found in stands.items()},
    )


def _heads(
    waits: Waits, members: Members, wait: RankWait
) -> Iterator[tuple[tuple[object, ...], Callable[[], Op]]]:
    """What the rank stands in: key of the operation and how to look at it."""
    head = wait.head
    if wait.frozen or wait.ended:
        return
    if wait.creating is not None and (head is None or wait.creating.began_ns < head.created_ns):
        yield ("create", wait.creating.ranks), partial(_creation, waits, wait.creating)
        return
    if head is None:
        return
    if not head.peers:
        group, everybody = head.group, members.of(head.group)
        key = (group.name, group.desc, len(everybody), everybody[:1], everybody[-1:], head.seq)
        yield key, partial(_collective, waits, members, head)
        return
    batch = [op for op in wait.pending if op.batch == head.batch] if head.batch >= 0 else [head]
    for op in batch:
        if op.peers and op.group == head.group:
            yield (wait.rank, id(op)), partial(_point_to_point, waits, wait, op)


def _collective(waits: Waits, members: Members, head: Pending) -> Op:
    group, seq = head.group, head.seq
    everybody = members.of(group)
    missing, behind, silent, finished = [], [], [], []
    calls: dict[int, Call] = {}
    onsets = []
    for rank in everybody:
        wait = waits.ranks.get(rank)
        if wait is None:
            if rank not in waits.unasked:
                silent.append(rank)
            continue
        track = members.track(rank, group) or _NO_TRACK
        call = track.at(seq)
        if call is not None:
            calls[rank] = call
        if track.completed >= seq:
            finished.append(rank)
        elif track.enqueued < seq:
            missing.append(rank)
        else:
            mine = _pending_at(wait, group, seq)
            if mine is not None:
                onsets.append(mine.created_ns)
            if mine is not wait.oldest or wait.creating is not None or wait.frozen:
                behind.append(rank)
    differ: list[int] = []
    usual: Call | None = None
    if len(set(calls.values())) > 1:
        differ, usual = odd_ones(calls)
        if usual is None:
            differ, usual = odd_by_replicas(waits, group, seq, calls)
        if usual is None:
            differ, usual = odd_by_condition(waits, calls)
        if usual is None:
            differ, usual = odd_by_history(waits, group, seq, calls)
    return Op(
        group=group,
        seq=seq,
        call=head.call if usual is None else usual,
        members=everybody,
        onset_ns=max(onsets, default=head.created_ns),
        missing=tuple(missing),
        behind=tuple(rank for rank in behind if rank not in differ),
        differ=tuple(differ),
        silent=_suspicious(waits, silent),
        finished=tuple(finished),
        calls=calls if differ else {},
        usual=usual,
        tied=bool(differ) and usual is None,
    )


def _suspicious(waits: Waits, silent: list[int]) -> tuple[int, ...]:
    """Of ranks without a usable record those that left none at all, if there are any: a file that
    cannot be read says nothing about its rank."""
    return tuple(rank for rank in silent if rank not in waits.unreadable) or tuple(silent)


def _pending_at(wait: RankWait, group: Group, seq: int) -> Pending | None:
    for op in wait.pending:
        if op.seq == seq and not op.peers and (op.group.name, op.group.desc) == (
            group.name, group.desc
        ):  # fmt: skip
            return op
    return None


def _point_to_point(waits: Waits, wait: RankWait, op: Pending) -> Op:
    """The other end has called its part, or not; or it stands in something earlier."""
    missing, behind, silent, finished = [], [], [], []
    counted, surplus = True, False
    for peer in op.peers:
        other = waits.ranks.get(peer)
        if other is None:
            if peer not in waits.unasked:
                silent.append(peer)
            continue
        theirs = _other_end(other, wait.rank, op)
        at = _ordinal(wait, other, op, theirs)
        if at is None:
            counted = False
            way = _same_way(wait, op)
            surplus = len(way) > len(theirs)
            at = _place(way, op)  # what both have pending began alike
        if at >= len(theirs):
            missing.append(peer)
        elif at < 0:
            finished.append(peer)
        elif not _stands_in(other, theirs[at]):
            behind.append(peer)
    if len(op.peers) > 1 and (finished or len(missing) + len(behind) + len(silent) < len(op.peers)):
        missing, behind, silent = [], [], []  # from anybody: one that has sent is enough
    return Op(
        group=op.group,
        seq=op.seq,
        call=op.call,
        members=(wait.rank, *op.peers),
        onset_ns=op.created_ns,
        p2p=True,
        missing=tuple(missing),
        behind=tuple(behind),
        silent=tuple(silent),
        finished=tuple(finished),
        weak=not counted,
        surplus=surplus,
    )


def _same_way(wait: RankWait, op: Pending) -> list[Pending]:
    return [
        other
        for other in wait.pending
        if other.peers == op.peers and other.send == op.send and other.group == op.group
    ]


def _other_end(other: RankWait, rank: int, op: Pending) -> list[Pending]:
    """What `other` has pending towards `rank`, the way that `op` needs, oldest first."""
    return [
        theirs
        for theirs in other.pending
        if rank in theirs.peers
        and theirs.send != op.send
        and (theirs.group.name, theirs.group.desc) == (op.group.name, op.group.desc)
    ]


def _ordinal(wait: RankWait, other: RankWait, op: Pending, theirs: Sequence[Pending]) -> int | None:
    """Place in `theirs` of the other end of `op`, by counting from the first operation on: negative
    when it is done, too large when it has not been called; None where a record does not reach
    back."""
    if len(op.peers) != 1:
        return None
    if wait.posted is None or other.posted is None:
        return _by_seq(op, theirs)
    way = _same_way(wait, op)
    later = len(way) - 1 - _place(way, op)
    mine = wait.posted.get((op.peers[0], op.send, op.group.name), 0) - later
    called = other.posted.get((wait.rank, not op.send, op.group.name), 0)
    return mine - 1 - (called - len(theirs))


def _by_seq(op: Pending, theirs: Sequence[Pending]) -> int | None:
    """In a group of two, every operation counts on both sides alike."""
    alone = op.batch < 0 and all(one.batch < 0 for one in theirs)
    if not alone or len(op.group.ranks or ()) != 2:
        return None
    if theirs and theirs[0].seq > op.seq:
        return -1
    return next((at for at, one in enumerate(theirs) if one.seq == op.seq), len(theirs))


def _place(way: Sequence[Pending], op: Pending) -> int:
    return next(at for at, one in enumerate(way) if one is op)


def _stands_in(wait: RankWait, op: Pending) -> bool:
    head = wait.head
    if head is None or wait.creating is not None or wait.frozen:
        return False
    return head is op or (head.batch >= 0 and head.batch == op.batch and head.group == op.group)


def _creation(waits: Waits, creation: Creation) -> Op:
    """Members that have not begun to make the group, and those that have it already."""
    missing, silent, finished = [], [], []
    for rank in creation.ranks:
        wait = waits.ranks.get(rank)
        if wait is None:
            if rank not in waits.unasked:
                silent.append(rank)
        elif _makes(wait, creation):
            continue
        elif _has_made(wait, creation):
            finished.append(rank)
        else:
            missing.append(rank)
    return Op(
        group=Group(name="", desc=creation.desc, ranks=creation.ranks),
        seq=0,
        call=Call(op="new_group"),
        members=creation.ranks,
        onset_ns=creation.began_ns,
        creation=True,
        missing=tuple(missing),
        silent=tuple(silent),
        finished=tuple(finished),
    )


def _makes(wait: RankWait, creation: Creation) -> bool:
    """Whether the rank is making it just now. The first group of all has no name before it is
    there."""
    now = wait.creating
    return (
        now is not None
        and now.ranks == creation.ranks
        and (now.name == creation.name or "" in (now.name, creation.name))
    )


def _has_made(wait: RankWait, creation: Creation) -> bool:
    """Whether the rank has begun to make this group, not just another one of the same ranks."""
    return any(ranks == creation.ranks and creation.name in ("", name) for name, ranks in wait.made)


def edges(graph: WaitGraph, *, guesses: bool = True) -> Sequence[Sequence[int]]:
    """Adjacency: nodes `0 .. world_size - 1` are ranks, the following ones are `graph.ops`.

    `guesses` False leaves out what only weak operations lack.
    """
    world = graph.waits.world_size
    into = {at: [world + op for op in at] for at in {*graph.stands.values(), ()}}
    out: list[list[int]] = [into[graph.stands.get(rank, ())] for rank in range(world)]
    out.extend(
        [rank for rank in op.lacks if rank < world and (guesses or not op.weak)] for op in graph.ops
    )
    return out
