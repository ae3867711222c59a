"""Who enters collectives when: the same collective is put together from all members' reports.

Collectives of a group that overlap are one round: it begins when the last member has come to the
round before, and all that passes until the last member comes to this one is its length. A member
is late when it comes last by a gap and when the gap is its own doing: from the end of its previous
operation, of any group, it took that much longer than the others.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from harness.state import waits
from harness.state.waits import Wait, Waits

_OWN_SHARE = 0.7
"""Of a gap that must be the late rank's own doing."""
_NO_WORK_NS = 2_000_000
"""What it takes to get from one collective to the next."""
_MOST_STEPS = 256
_MOST_WAITING = 256
_MOST_RELEASES = 256

Previous = tuple["GroupArrivals", int, int]
"""Group, sequence number and time of the operation a rank had entered right before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rank's arrival at a collective; `at_ns` on the head's clock."""

    at_ns: int
    before: Previous | None
    call: str = ""


@dataclass(slots=True)
class Round:
    """Overlapping collectives of a group, ending with `seq`."""

    seq: int
    release_ns: int
    """When the last member came."""
    since_ns: int | None
    """When the last one had come to the round before; None when that was not seen."""
    arrived: dict[int, int]
    own_ns: dict[int, int | None]
    """What each member took since its previous operation had ended; None: not known."""
    call: str = ""
    """The last one's."""


@dataclass(slots=True)
class GroupArrivals:
    """A process group's collectives."""

    pg: str
    desc: str
    members: tuple[int, ...]
    slack_ns: int = 0
    """What its nodes' clocks may be apart."""
    op: str = ""
    waiting: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """Collectives that not all members are known to have come to, by sequence number."""
    releases: dict[int, int] = field(default_factory=dict)
    last: Round | None = None
    waits: Waits = field(init=False)

    def __post_init__(self) -> None:
        self.waits = Waits(members=len(self.members), slack_ns=self.slack_ns)


@dataclass(slots=True)
class Reached:
    """How far the members of a group have come."""

    pg: str
    desc: str
    seqs: dict[int, int]
    """By member: its newest collective; -1: none is known."""
    op: str = ""


@dataclass(slots=True)
class Arrivals:
    """All groups of an attempt."""

    groups: dict[tuple[str, int], GroupArrivals] = field(default_factory=dict)
    """By name and rank: disjoint groups may share a name."""
    reached: dict[tuple[str, int], Reached] = field(default_factory=dict)
    """By name and the member that told of it: all that is kept of groups where nothing is judged,
    and kept nowhere else."""
    last_of: dict[int, tuple[int, Previous]] = field(default_factory=dict)
    """By rank: its own number of its newest operation, and which it was."""
    peers: dict[int, frozenset[int]] = field(default_factory=dict)
    """By rank: whom it sends to or receives from; their waiting for each other is not recorded."""
    stages: dict[int, int] = field(default_factory=dict)
    """By rank: its pipeline stage, where a mesh was declared."""
    furthest: int = 0
    """Steps completed by the rank that was seen to be furthest."""
    furthest_ns: int = 0
    """When it had."""
    step_ns: int = 0
    """About what a step takes lately; 0 when steps are not counted."""
    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))
    """Now and then: the time at which a step was completed, and its number."""
    suspects: dict[tuple[str, int], GroupArrivals] = field(default_factory=dict)
    """By name and first member: groups in which there is something to tell."""
    differing: dict[tuple[str, int], tuple[GroupArrivals, int, dict[int, str]]] = field(
        default_factory=dict
    )
    """By name and first member of a group: the first collective in which its members called
    different things, and what each called, though nothing hung."""
    ref: tuple[str, int] = ("", 0)
    """Source and seq of the newest report."""


def step_at(arrivals: Arrivals, at_ns: int) -> int | None:
    """About how many steps were completed at that time; None when it is not known."""
    for (before_ns, before), (after_ns, after) in pairwise(arrivals.steps):
        if before_ns <= at_ns <= after_ns:
            share = (at_ns - before_ns) / max(1, after_ns - before_ns)
            return before + int(share * (after - before))
    return None


def enter(
    arrivals: Arrivals,
    rank: int,
    record: int,
    group: GroupArrivals,
    seq: int,
    at_ns: int,
    call: str = "",
) -> bool:
    """`rank` came to collective `seq` of `group`; whether all members have now."""
    last = arrivals.last_of.get(rank)
    before = last[1] if last is not None and last[0] == record - 1 else None
    arrivals.last_of[rank] = (record, (group, seq, at_ns))
    if group.last is not None and seq <= group.last.seq:
        return False
    there = group.waiting.setdefault(seq, {})
    there[rank] = Entry(at_ns=at_ns, before=before, call=call)
    if len(group.waiting) > _MOST_WAITING:
        del group.waiting[min(group.waiting)]
    return len(there) == len(group.members)


def complete(arrivals: Arrivals, done: Iterable[tuple[GroupArrivals, int]]) -> None:
    """All members of these groups have come to these collectives."""
    whole = [
        (max(entry.at_ns for entry in group.waiting[seq].values()), seq, group)
        for group, seq in done
        if seq in group.waiting
    ]
    for release_ns, seq, group in whole:
        group.releases[seq] = release_ns
        if len(group.releases) > _MOST_RELEASES:
            del group.releases[min(group.releases)]
    for release_ns, seq, group in sorted(whole, key=lambda item: item[:2]):
        entries = group.waiting.pop(seq)
        _compare(arrivals, group, seq, entries)
        if group.last is None or seq > group.last.seq:
            _next_round(arrivals, group, seq, release_ns, entries)


def _compare(arrivals: Arrivals, group: GroupArrivals, seq: int, entries: dict[int, Entry]) -> None:
    calls = {rank: entry.call for rank, entry in entries.items()}
    if len(set(calls.values())) > 1:
        arrivals.differing.setdefault((group.pg, group.members[0]), (group, seq, calls))


def _next_round(
    arrivals: Arrivals, group: GroupArrivals, seq: int, release_ns: int, entries: dict[int, Entry]
) -> None:
    arrived = {rank: entry.at_ns for rank, entry in entries.items()}
    own = {rank: _own_ns(entry) for rank, entry in entries.items()}
    last = group.last
    follows = last is not None and seq == last.seq + 1
    if last is not None and follows and min(arrived.values()) < last.release_ns - group.slack_ns:
        last.own_ns = {rank: _sum(last.own_ns[rank], own[rank]) for rank in own}
        last.seq, last.arrived, last.call = seq, arrived, _call(entries)
        last.release_ns = max(last.release_ns, release_ns)
        return
    if last is not None and last.since_ns is not None:
        _add(arrivals, group, _wait(arrivals, group, last, last.since_ns))
    group.last = Round(
        seq=seq,
        release_ns=release_ns,
        since_ns=last.release_ns if last is not None and follows else None,
        arrived=arrived,
        own_ns=own,
        call=_call(entries),
    )


def _call(entries: dict[int, Entry]) -> str:
    return next(iter(entries.values())).call


def _own_ns(entry: Entry) -> int | None:
    if entry.before is None:
        return None
    group, seq, entered_ns = entry.before
    release_ns = group.releases.get(seq)
    if release_ns is None:
        return None
    return entry.at_ns - (release_ns if release_ns <= entry.at_ns else entered_ns)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _wait(arrivals: Arrivals, group: GroupArrivals, ended: Round, since_ns: int) -> Wait:
    length_ns = max(ended.release_ns - since_ns, 0)
    ranks, gap_ns = _late(_comparable(arrivals, ended))
    if ranks and not _own_doing(ended, ranks, gap_ns):
        ranks, gap_ns = (), 0
    work = [own for rank, own in ended.own_ns.items() if rank not in ranks and own is not None]
    return Wait(
        seq=ended.seq,
        at_ns=ended.release_ns,
        length_ns=length_ns,
        ranks=ranks,
        gap_ns=gap_ns,
        work_ns=max(0, int(median(work)) - _NO_WORK_NS) if work else 0,
        call=ended.call,
    )


def _comparable(arrivals: Arrivals, ended: Round) -> dict[int, int]:
    """Arrivals of those that do the same work as the last to come; empty when there are none.

    Stages of a pipeline differ by design. Where no mesh tells them apart, ranks that exchange
    tensors are taken for stages.
    """
    arrived = ended.arrived
    last = max(arrived, key=lambda rank: arrived[rank])
    if last in arrivals.stages:
        stage = arrivals.stages[last]
        same = {rank: at for rank, at in arrived.items() if arrivals.stages.get(rank) == stage}
        return same if len(same) > 1 else {}
    if arrivals.peers and any(
        not arrivals.peers.get(rank, frozenset()).isdisjoint(arrived) for rank in arrived
    ):
        return {}
    return arrived


def _late(arrived: dict[int, int]) -> tuple[tuple[int, ...], int]:
    """The ranks after the largest gap, when they are no more than half, and the gap."""
    order = sorted(arrived.items(), key=lambda item: item[1])
    gaps = [order[at][1] - order[at - 1][1] for at in range(1, len(order))]
    if not gaps:
        return (), 0
    widest = max(range(len(gaps)), key=lambda at: gaps[at])
    late = [rank for rank, _ in order[widest + 1 :]]
    if len(late) * 2 > len(order) or gaps[widest] <= 0:
        return (), 0
    return tuple(sorted(late)), gaps[widest]


def _own_doing(ended: Round, ranks: tuple[int, ...], gap_ns: int) -> bool:
    """Whether they took longer themselves, rather than having been held up elsewhere."""
    others = [own for rank, own in ended.own_ns.items() if rank not in ranks and own is not None]
    if not others:
        return False
    usual = median(others)
    return all(
        own is not None and own - usual >= _OWN_SHARE * gap_ns
        for own in (ended.own_ns[rank] for rank in ranks)
    )


def _add(arrivals: Arrivals, group: GroupArrivals, wait: Wait) -> None:
    waits.add(group.waits, wait, arrivals.step_ns)
    key = (group.pg, group.members[0])
    if group.waits.suspect:
        arrivals.suspects[key] = group
    else:
        arrivals.suspects.pop(key, None)
