"""Digests of ranks put side by side, look by look: who is equal to whom, since when, until when.

Nothing is concluded from what is missing: a rank that has not told, a look that was lost, tensors
that are not the same ones. What follows from a difference is for `harness.state.suspecting` to
say, and for `harness.diagnosis.replicas` to put into words.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from harness.sightings import DigestPart, DigestRow
from harness.state.closely import Closely
from harness.topology import ranks_of

_MOST_PENDING = 16
_RELAXED = 4
"""Looks begun after which ranks that have never told of a part are no longer waited for."""
_MOST_EQUAL, _MOST_UNEQUAL = 64, 6
"""Looks of a part that are remembered."""
COLUMNS = "columns"
"""Mark of the sums of columns, looked at now and then beside those of rows: they show what rows
do not."""
FLAT = "flat"
"""Mark of what is summed as a part of a flat tensor that holds other gradients as well."""
UNNAMED = "#"
"""Begins the names of parameters that have none but their place in the optimizer."""
LEARNT = ("learnt", "hand")
"""Nobody declares who has these in common."""
LEFT = "left"
"""Nothing keeps these alike, though all others of their optimizer are kept so."""

Ref = tuple[str, int]
"""Source and number of the record that shows something."""
Classes = frozenset[frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All members' digests at one look, `at_ns` wall clock."""

    count: int
    step: int
    at_ns: int
    ref: Ref
    values: dict[int, frozenset[int]]
    """Ranks, by digest."""
    progress: dict[int, int]

    @property
    def classes(self) -> Classes:
        return frozenset(self.values.values())

    @property
    def equal(self) -> bool:
        return len(self.values) == 1

    def value(self, rank: int) -> int | None:
        return next((value for value, ranks in self.values.items() if rank in ranks), None)


@dataclass(slots=True, kw_only=True)
class Split:
    """Ranks that were alike at `before`, and are not any more since `at`; `looks` since then."""

    before: Look
    at: Look
    held: int
    """Looks in a row with the ranks as alike as at `before`."""
    moved: int
    """Those of them at which the values were new."""
    looks: int = 1
    strayed: frozenset[int] = frozenset()
    """Ranks that had not done as much as most at `at` since the look before it, or right before
    `before`; all where none are most."""


@dataclass(slots=True, kw_only=True)
class Track:
    """One part. `groups` has, for a rank, those over which its program sums what is of this shape
    (or its gradient)."""

    part: DigestPart
    members: frozenset[int] = frozenset()
    told: set[int] = field(default_factory=set)
    groups: dict[int, frozenset[int]] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    pending: dict[int, dict[int, set[int]]] = field(default_factory=dict)
    """By count: ranks by digest."""
    progress: dict[int, dict[int, int]] = field(default_factory=dict)
    """By count and rank."""
    done: int = -1
    looks: int = 0
    moved: int = 0
    held: int = 0
    held_moved: int = 0
    wavered: bool = False
    """Nothing can be said of it, mostly because it is `reunited`."""
    reunited: bool = False
    """Its ranks have been alike, different and alike again."""
    strayed: tuple[int, frozenset[int]] = (-1, frozenset())
    """Count of the newest look, and ranks that had not done as much since the one right before."""
    first: Look | None = None
    last: Look | None = None
    split: Split | None = None
    equal: dict[int, dict[int, int]] = field(default_factory=dict)
    """The digest that each group had in common, by the least of its ranks and by count, of the
    newest looks at which every group had one."""
    unequal: list[Look] = field(default_factory=list)
    """The first looks at which not every group had one."""

    @property
    def single(self) -> bool:
        return self.part.tensors == 1

    def groups_of(self, ranks: Iterable[int]) -> set[frozenset[int]]:
        """Those in which `ranks` should have this in common, as far as is known."""
        if self.groups:
            return {self.groups.get(rank, frozenset()) for rank in ranks}
        return {self.members or frozenset(self.told)}

    def join(self, members: frozenset[int]) -> None:
        """The program sums what is of this over `members`."""
        if all(self.groups.get(rank) == members for rank in members):
            return
        self.groups.update(dict.fromkeys(members, members))
        looks, self.unequal = self.unequal, []
        for look in looks:  # they may have been those of groups that nobody knew of
            self._remember(look)

    def expected(self, world_size: int) -> frozenset[int]:
        """The ranks that are waited for."""
        if self.part.how not in LEARNT:
            return self.members
        return self._who(world_size)

    def _needed(self, world_size: int) -> int:
        if self.part.how not in LEARNT:
            return len(self.members)
        return len(self.told) if self._relaxed else world_size

    @property
    def _relaxed(self) -> bool:
        return len(self.pending) > _RELAXED or self.looks > 0

    def _who(self, world_size: int) -> frozenset[int]:
        if self._relaxed:
            return frozenset(self.told)
        return frozenset(range(world_size))

    def add(self, row: DigestRow, ref: Ref, world_size: int) -> Look | None:
        """Take one row; the look that it completes."""
        if row.count <= self.done:
            return None
        self.told.update(row.ranks)
        values = self.pending.setdefault(row.count, {})
        values.setdefault(row.value, set()).update(row.ranks)
        self.progress.setdefault(row.count, {}).update(dict.fromkeys(row.ranks, row.progress))
        # Counted first: to compare sets for each row would cost each rank what all have told.
        present = self.progress[row.count]
        if len(present) < max(2, self._needed(world_size)) or not (
            self.expected(world_size) <= present.keys()
        ):
            if len(self.pending) > _MOST_PENDING:
                self._forget(min(self.pending))
            return None
        look = Look(
            count=row.count, step=row.step, at_ns=row.at_ns, ref=ref,
            values={value: frozenset(ranks) for value, ranks in values.items()},
            progress=self.progress[row.count],
        )  # fmt: skip
        for count in [count for count in self.pending if count <= row.count]:
            self._forget(count)
        self.done = row.count
        self._complete(look)
        return look

    def _forget(self, count: int) -> None:
        self.pending.pop(count, None)
        self.progress.pop(count, None)

    def _complete(self, look: Look) -> None:
        self.looks += 1
        self._remember(look)
        last, self.last = self.last, look
        if self.first is None or last is None:
            self.first = look
            self.held, self.held_moved = 1, 0
            return
        moved = look.values.keys() != last.values.keys()
        self.moved += moved
        astray = strayed(last, look)
        if self.split is None:
            if look.classes == last.classes:
                self.held += 1
                self.held_moved += moved
            else:
                count, known = self.strayed
                if count != last.count:
                    known = frozenset()
                self.split = Split(
                    before=last, at=look, held=self.held, moved=self.held_moved,
                    strayed=known | astray,
                )  # fmt: skip
        elif look.classes == self.split.before.classes:
            if self.part.site != "gradients":
                self.wavered = self.reunited = True
            self.split, self.held, self.held_moved = None, 1, 0
        else:
            self.split.looks += 1
        self.strayed = look.count, astray if look.count == last.count + 1 else frozenset()

    def _remember(self, look: Look) -> None:
        """For an attempt that computes the same again."""
        if not equal_in_groups(self, look):
            if len(self.unequal) < _MOST_UNEQUAL and self.part.how != "sharded":
                self.unequal.append(replace(look, progress={}))
            return
        groups = set(self.groups.values()) or {self.members or look_all(look)}
        leaders = {min(group) for group in groups}
        self.equal[look.count] = {
            leader: value for value, ranks in look.values.items() for leader in leaders & ranks
        }
        if len(self.equal) > _MOST_EQUAL:
            del self.equal[next(iter(self.equal))]


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """What a track shows beyond doubt. `kind`: split (were alike, are not), apart (should be alike,
    never were), left (were alike until the first step; theirs alone are not reduced), stepped (the
    same, but their gradients are still alike), axis (alike within each of the program's groups
    only), alike (should differ), buffers. `told` are the tensors' digests by rank, once they have
    been asked for."""

    kind: str
    track: Track
    before: Look | None
    at: Look
    group: frozenset[int]
    """The ranks it is about."""
    held: int = 0
    moved: int = 0
    names: tuple[str, ...] = ()
    told: dict[int, tuple[int, ...]] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    """Nodes that were asked for them."""
    asked_ns: int = 0
    answered: set[int] = field(default_factory=set)
    close: Closely = field(default_factory=Closely)
    """What was found of the tensor itself."""

    @property
    def clean(self) -> Look | None:
        """The last look at which nothing was wrong."""
        return self.before if self.kind == "split" else None


@dataclass(slots=True)
class Replicas:
    """All parts of one attempt."""

    tracks: dict[int, Track] = field(default_factory=dict)
    differed: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """Names and shapes of variables that have been different on all ranks at some place."""
    suspicions: list[Suspicion] = field(default_factory=list)
    averaged: set[int] = field(default_factory=set)
    """Optimizers whose parameters the program lets go apart, and makes one again now and then."""
    certified: set[str] = field(default_factory=set)
    """Paths of checkpoints whose certification was ordered."""
    vouched: set[str] = field(default_factory=set)
    """Those of them whose manifest says so by now."""
    held: set[str] = field(default_factory=set)
    """Paths of those that retention was to leave alone."""
    saved_ns: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files that the script saved for itself: when, the last time, and the rank."""
    first_saved_ns: dict[str, int] = field(default_factory=dict)

    def most(self, world_size: int) -> int:
        return 1024 + 16 * world_size

    def note_part(self, part: DigestPart, world_size: int) -> None:
        track = self.tracks.get(part.part)
        if track is None:
            if len(self.tracks) >= self.most(world_size):
                return
            members = frozenset(ranks_of(part.members))
            track = self.tracks[part.part] = Track(part=part, members=members)
        track.marks.update(part.marks)
        if part.how in LEARNT and part.members:
            track.part = part
            track.join(frozenset(ranks_of(part.members)))

    def clean(self) -> Look | None:
        """The last look before the first suspicion of a change: what was saved later may be bad."""
        looks = [known.clean for known in self.suspicions]
        return min((look for look in looks if look), key=lambda look: look.at_ns, default=None)

    def verified_step(self, ranks: Iterable[int]) -> int | None:
        """The step up to which all replicas were equal, when every one of `ranks` is one; None when
        there is none, or when something is suspected."""
        if self.suspicions:
            return None
        steps: list[int] = []
        covered: set[int] = set()
        for track in self.tracks.values():
            declared = track.part.how not in LEARNT or track.groups
            if not declared or track.part.how in ("sharded", LEFT) or track.part.site == "buffers":
                continue
            if track.part.site == "variables" or track.last is None:
                continue
            if not equal_in_groups(track, track.last):
                return None
            if COLUMNS in track.part.marks:
                continue  # now and then only
            if track.part.site in ("parameters", "optimizer state"):
                steps.append(track.last.step)
            if track.part.site == "parameters":
                covered |= track.told
        return min(steps) if steps and covered >= set(ranks) else None


def in_step(before: Look, at: Look, group: frozenset[int]) -> bool:
    """Whether all of `group` have done as much between the two looks: ranks whose programs have
    gone different ways have reason to hold different values."""
    if not all(rank in before.progress and rank in at.progress for rank in group):
        return False
    return len({at.progress[rank] - before.progress[rank] for rank in group}) == 1


def strayed(before: Look, at: Look) -> frozenset[int]:
    """Ranks that have not done as much as most between the two looks; all where none are most."""
    done = Counter(
        {rank: at.progress[rank] - before.progress.get(rank, 0) for rank in at.progress}.values()
    )
    if len(done) < 2:
        return frozenset()
    (most, number), (_, next_one) = done.most_common(2)
    return frozenset(
        rank
        for rank in at.progress
        if number == next_one or at.progress[rank] - before.progress.get(rank, 0) != most
    )


def shifted(track: Track, group: frozenset[int]) -> bool | None:
    """Whether ranks of `group` that are not alike at one look are so at different ones: then they
    only count otherwise, and hold the same. None where no two steps in a row were looked at, so
    that it cannot be seen."""
    since = 0 if track.split is None else track.split.at.count
    looks = [look for look in track.unequal if look.count >= since]
    seen: dict[int, set[int]] = {}
    for look in looks:
        for value, ranks in look.values.items():
            for rank in ranks & group:
                seen.setdefault(rank, set()).add(value)
    if seen and all(one & other for one in seen.values() for other in seen.values()):
        return True
    counts = {look.count for look in looks}
    a_step = 2 if track.part.site == "parameters" else 1
    return False if any(count + a_step in counts for count in counts) else None


def behind(split: Split) -> bool:
    """Whether those that strayed are few, and came there with more done than the others: then they
    have left out what the others count. One that counts more may have counted what is nothing."""
    look = split.at if strayed(split.before, split.at) else split.before
    others = [look.progress[rank] for rank in look.progress if rank not in split.strayed]
    return bool(others) and all(
        look.progress[rank] > max(others) for rank in split.strayed if rank in look.progress
    )


def changed_at_rest(
    track: Track, before: Look | None, at: Look, group: frozenset[int]
) -> frozenset[int]:
    """Ranks of `group` whose parameters have changed between the end of a step and the begin of the
    next, when not all have: a program that changes them there does so on all replicas."""
    if track.part.site != "parameters" or before is None:
        return frozenset()
    if at.count % 2 or before.count != at.count - 1:
        return frozenset()
    broken = frozenset(rank for rank in group if before.value(rank) != at.value(rank))
    return broken if broken != group else frozenset()


def equal_in_groups(track: Track, look: Look) -> bool:
    """Whether all have the same that the program sums it over; without such groups, all."""
    if not track.groups or look.equal:
        return look.equal
    values = {rank: value for value, ranks in look.values.items() for rank in ranks}
    return all(
        len({values[rank] for rank in group if rank in values}) < 2
        for group in set(track.groups.values())
    )


def alike(look: Look, group: frozenset[int]) -> bool:
    """Whether all of `group` have the same there."""
    return any(group <= ranks for ranks in look.classes)


def look_all(look: Look) -> frozenset[int]:
    """All ranks of a look."""
    return frozenset().union(*look.classes)
