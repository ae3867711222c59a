"""Whether ranks that came to the same mark of their program came there with the same number of
collectives behind them.

`Track` compares one kind of mark in one group, count by count. It claims nothing before the
members have agreed for a while, nothing that lasts only a moment, and never again anything where
agreement comes and goes: not every program is symmetric.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

STEP, BACKWARD, FORWARD = "step", "backward", "forward"
LEAST_AGREED = 4
"""Counts in a row at which all members agreed and had gone on."""
LEAST_REGULAR = 8
"""Counts in a row with as many collectives each, before that makes a rhythm."""
LEAST_DIFFERING = 3
"""Counts in a row at which they then differ, always by as much, and go on."""
_MOST_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Where a member was. `ranks` are those it speaks for. `counters` maps variables of the
    program to how far each is from where its rhythm would have it at this count."""

    ranks: tuple[int, ...]
    seq: int
    counters: tuple[tuple[int, int], ...]
    at_ns: int
    name: str = ""
    value: int = 0


Row = Mapping[int, Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a track has found. `counted` says that the program's own variables were alike on all
    members at every one of these counts; `row` is the first differing one, at `count`, `before`
    the last one that was alike, at `count_before`."""

    kind: str
    count: int
    row: Row
    before: Row
    count_before: int
    agreed: int
    rows: int
    counted: bool
    first_ns: int
    regular: frozenset[int] = frozenset()
    """Members that went on at this count as all had at every count before; empty where that varied
    or had not been seen for long."""


class Track:
    """One kind of mark (and call chain) in one group."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.wavered = False
        self.last_ns = 0
        self._agreed = 0
        self._counted = False
        self._last: Row | None = None
        self._levels: dict[int, int] | None = None
        self._last_count = 0
        self._rate = 0.0
        self._regular = 0
        self._first: Difference | None = None
        self._rows = 0

    @property
    def agrees(self) -> bool:
        """The members have been alike for long enough, up to now."""
        return not self.wavered and self._levels is None and self._agreed >= LEAST_AGREED

    @property
    def difference(self) -> Difference | None:
        """The present one, however young."""
        if self.wavered or self._levels is None or self._first is None:
            return None
        return replace(self._first, rows=self._rows, counted=self._counted)

    def interrupt(self) -> None:
        """Counts are missing: what follows cannot be joined to what was."""
        self.wavered = self.wavered or self._levels is not None
        self._agreed, self._last, self._counted = 0, None, False

    def add(self, count: int, row: Row) -> None:
        """All members' samples at `count`, which is larger than the last one."""
        if self.wavered:
            return
        seqs = {member: sample.seq for member, sample in row.items()}
        moved = self._last is None or (
            self._last.keys() == row.keys()
            and all(sample.seq > self._last[member].seq for member, sample in row.items())
        )
        lowest = min(seqs.values())
        levels = {member: seq - lowest for member, seq in seqs.items()}
        self.last_ns = max(sample.at_ns for sample in row.values())
        alike = counters_agree(row.values())
        if not any(levels.values()):
            self.wavered = self._levels is not None
            self._agreed = self._agreed + 1 if moved else 0
            self._counted = alike
            self._keep_time(count, row)
        elif self._levels is None:
            self.wavered = self._agreed < LEAST_AGREED
            self._levels, self._rows = levels, 1
            self._first = Difference(
                kind=self.kind, count=count, row=row, before=self._last or {},
                count_before=self._last_count, agreed=self._agreed, rows=1, counted=False,
                first_ns=self.last_ns, regular=self._in_time(count, row),
            )  # fmt: skip
            self._counted = self._counted and alike
        elif levels != self._levels or not moved:
            self.wavered = True
        else:
            self._rows += 1
            self._counted = self._counted and alike
        self._last, self._last_count = row, count

    def _keep_time(self, count: int, row: Row) -> None:
        """The members are alike here: do they go on as fast as before?"""
        rates = set(self._rates(count, row).values())
        rate = rates.pop() if len(rates) == 1 else 0.0
        self._regular = self._regular + 1 if rate == self._rate else 1
        self._rate = rate

    def _in_time(self, count: int, row: Row) -> frozenset[int]:
        if self._regular < LEAST_REGULAR:
            return frozenset()
        rates = self._rates(count, row)
        return frozenset(member for member, rate in rates.items() if rate == self._rate)

    def _rates(self, count: int, row: Row) -> dict[int, float]:
        """Collectives per count since the last row."""
        if self._last is None:
            return {}
        passed, last = count - self._last_count, self._last
        return {m: (sample.seq - last[m].seq) / passed for m, sample in row.items() if m in last}


def counters_agree(samples: Iterable[Sample]) -> bool:
    """Whether the members have variables in common and all of those are where they should be."""
    tables = [dict(sample.counters) for sample in samples]
    common = set(tables[0]).intersection(*tables[1:])
    return bool(common) and all(len({table[name] for table in tables}) == 1 for name in common)


class Book:
    """All tracks of one group of `size` ranks, by the counts that all of them tell."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.tracks: dict[tuple[str, int], Track] = {}
        self._rows: dict[tuple[str, int], dict[int, dict[int, Sample]]] = {}
        self._done: dict[tuple[str, int], int] = {}
        self.unstepped: tuple[int, Difference] | None = None
        """Key and difference of optimizer steps that one side has made fewer, or more, while all
        backward passes have their collectives: the first that was beyond doubt."""

    def add(self, kind: str, key: int, count: int, member: int, sample: Sample) -> Row | None:
        """`member` came to `count`; returns the row when it is complete now."""
        place = (kind, key)
        rows = self._rows.setdefault(place, {})
        if count <= self._done.get(place, 0):
            return None
        row = rows.setdefault(count, {})
        row[member] = sample
        if sum(len(each.ranks) for each in row.values()) < self._size:
            if len(rows) > _MOST_ROWS:
                del rows[min(rows)]  # left out by a member, or it has ended or never comes here
            return None
        track = self.tracks.setdefault(place, Track(kind))
        for known in [known for known in rows if known <= count]:
            del rows[known]
        self._done[place] = count
        track.add(count, row)
        if self.unstepped is None and kind != FORWARD:
            self.unstepped = self._find_unstepped()
        return row

    def interrupt(self) -> None:
        """Records were lost."""
        for track in self.tracks.values():
            track.interrupt()

    def difference(self) -> tuple[int, Difference] | None:
        """The key and difference of a track that is beyond doubt."""
        for (kind, key), track in self.tracks.items():
            found = track.difference
            if found is None or found.rows < LEAST_DIFFERING:
                continue
            if kind == FORWARD:
                sure = found.counted
            else:
                others = [other for other in self.tracks.values() if other.kind != FORWARD]
                sure = not _contradicted(found, others) and (
                    found.counted or _seconded(found, others)
                )
            if sure:
                return key, found
        return None

    def _find_unstepped(self) -> tuple[int, Difference] | None:
        passes = [track for track in self.tracks.values() if track.kind == BACKWARD]
        for (kind, key), track in self.tracks.items():
            found = track.difference
            if kind != STEP or found is None or found.rows < LEAST_DIFFERING:
                continue
            since = [other for other in passes if other.last_ns > found.first_ns]
            if since and all(other.agrees for other in since) and steps_fewer(found):
                return key, found
        return None


def _contradicted(found: Difference, others: Sequence[Track]) -> bool:
    """Whether marks of the other kind say that the members still agree: then the rank has made a
    pass or a step more, or fewer, and left out no collective."""
    return any(
        other.kind != found.kind and other.agrees and other.last_ns > found.first_ns
        for other in others
    )


def _seconded(found: Difference, others: Sequence[Track]) -> bool:
    """Whether marks of the other kind differ in the same way."""
    mine = _levels(found.row)
    return any(
        other.kind != found.kind
        and (theirs := other.difference) is not None
        and theirs.rows >= LEAST_DIFFERING - 1
        and _levels(theirs.row) == mine
        for other in others
    )


def _levels(row: Row) -> dict[int, int]:
    lowest = min(sample.seq for sample in row.values())
    return {member: sample.seq - lowest for member, sample in row.items()}


def odd_ranks(found: Difference) -> tuple[tuple[int, ...], int | None]:
    """The ranks that are not where most are, and where those are. Where their number does not
    tell, those that left the rhythm; where that does not tell either, all of them, and None."""
    ranks: Counter[int] = Counter()
    for sample in found.row.values():
        ranks[sample.seq] += len(sample.ranks)
    (usual, most), *rest = ranks.most_common()
    if most < 2 or rest[0][1] == most:
        kept = {found.row[member].seq for member in found.regular}
        if len(kept) != 1:
            return tuple(sorted(r for sample in found.row.values() for r in sample.ranks)), None
        usual = kept.pop()
    odd = [r for sample in found.row.values() if sample.seq != usual for r in sample.ranks]
    return tuple(sorted(odd)), usual


def steps_fewer(found: Difference) -> int:
    """How many marks the odd ranks, or those with more collectives where nobody is odd, have made
    fewer than the others; negative: more. 0 where their collectives are no whole number of
    rhythms, so that it is not known."""
    odd, usual = odd_ranks(found)
    passed = found.count - found.count_before
    ways = {m: s.seq - found.before[m].seq for m, s in found.row.items() if m in found.before}
    if usual is None:
        seqs = sorted({sample.seq for sample in found.row.values()})
        usual = seqs[0]
        paces = sorted(way for way in ways.values() if way > 0)
    else:
        paces = sorted({way for m, way in ways.items() if found.row[m].seq == usual})
        seqs = sorted({s.seq for s in found.row.values() if set(s.ranks) & set(odd)})
    if not paces or not paces[0]:
        return 0
    steps, rest = divmod((seqs[-1] - usual) * passed, paces[0])
    return 0 if rest else steps
