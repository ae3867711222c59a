"""What a rank's record of its collectives says, group by group: what it called, what finished."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

from harness.collectives import Collective, Terms, is_done, same_input
from harness.columns import Columns, Recorded
from harness.diagnosis.waits.record import ALONE, Call, Group, Pending, Step, Track

_record_id = attrgetter("record_id")
_LONGEST_GAP = 1 << 16
"""Between two calls of a group, where one that never finished is kept beside the newest ones."""


def recorded(
    collectives: Sequence[Collective], declared: Mapping[str, Group]
) -> tuple[dict[Group, Track], "Past", list[Pending]]:
    """What a record says of each group, all in all, and what has not finished. `declared` are
    groups by name as the rank has made them."""
    if isinstance(collectives, Recorded):
        found = _of_columns(collectives, declared)
        if found is not None:
            return found
    entries = sorted(collectives, key=_record_id)
    slots: dict[str | tuple[str, str], int] = {}
    names = [pg if (pg := entry.pg) in declared else (pg, entry.pg_desc) for entry in entries]
    places = tuple([slots.setdefault(name, len(slots)) for name in names])
    groups = tuple(
        [declared[name] if isinstance(name, str) else undeclared(*name) for name in slots]
    )
    past = _past(roles(groups), places, tuple(map(_parts, entries)))
    pending = [
        Pending(
            group=groups[places[at]], seq=entries[at].seq_id, call=past.calls[at],
            created_ns=entries[at].created_ns,
        )
        for at in past.open
    ]  # fmt: skip
    return dict(zip(groups, past.tracks, strict=True)), past, pending


def _of_columns(
    it: Recorded, declared: Mapping[str, Group]
) -> tuple[dict[Group, Track], "Past", list[Pending]] | None:
    """The same without a look at a single entry; None where it has to be looked at."""
    columns = it.columns
    try:
        groups = tuple(map(declared.__getitem__, it.names))
    except KeyError:
        groups = tuple(
            [
                declared.get(name) or undeclared(name, desc)
                for name, desc in zip(it.names, columns.descs, strict=True)
            ]
        )
    past = _past_of(roles(groups), columns)
    if past is None:
        return None
    tracks = dict(zip(groups, past.tracks, strict=True))
    if len(tracks) < len(groups):
        return None
    pending = [
        Pending(
            group=groups[columns.groups[at]], seq=columns.seqs[at], call=past.calls[at],
            created_ns=it.created_ns(at),
        )
        for at in past.open
    ]  # fmt: skip
    return tracks, past, pending


def roles(groups: Sequence[Group]) -> tuple[str, ...]:
    """What each of a rank's groups is to it. Those that nobody has described are told apart by size
    and by the order in which they were made: their names are others on every rank, but counted."""
    known = tuple([group.role for group in groups])
    if "" not in known:  # nearly always, and there are thousands
        return known
    seen: Counter[int] = Counter()
    found = [group.label for group in groups]
    for at in sorted(range(len(groups)), key=lambda at: _made_as(groups[at])):
        group, size = groups[at], len(groups[at].ranks or ())
        if size == 1:
            found[at] = ALONE
        elif not group.described:
            seen[size] += 1
            of = f" of {size} ranks" if size else ""
            found[at] = f"its group {seen[size]}{of}"
    return tuple(found)


def _made_as(group: Group) -> int:
    return int(group.name) if group.name.isdecimal() else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a rank's record says, in whatever groups: `tracks` has one for each of them, `open` the
    places in the record of what has not finished."""

    tracks: tuple[Track, ...]
    calls: tuple[Call, ...]
    open: tuple[int, ...]
    program: tuple[Step, ...]
    order: tuple[tuple[str, int], ...]
    whole: bool


_parts = attrgetter(
    "record_id", "seq_id", "op", "sizes", "dtypes", "site", "state", "retired",
    "terms",
)  # fmt: skip
_Parts = tuple[
    int, int, str, tuple[tuple[int, ...], ...], tuple[str, ...], str, str, bool,
    Terms | None,
]  # fmt: skip


# Thousands of ranks do the same, each in groups of its own: what is equal is made once.
@lru_cache(maxsize=4096)
def _past(labels: tuple[str, ...], places: tuple[int, ...], entries: tuple[_Parts, ...]) -> Past:
    """Of `entries`, oldest first, and the groups that they are in: places in `labels`."""
    growing = [Growing() for _ in labels]
    calls, unfinished = [], []
    for at, entry in enumerate(entries):
        _, seq, op, sizes, dtypes, site, state, retired, terms = entry
        call, track = _call(op, sizes, dtypes), growing[places[at]]
        calls.append(call)
        track.add(seq, call, site)
        if terms is not None:
            track.terms[seq] = terms
        if not is_done(op, state, retired=retired):
            track.open.append(seq)
            unfinished.append(at)
    begin = unbroken([entry[0] for entry in entries])
    return Past(
        tracks=tuple(track.frozen() for track in growing),
        calls=tuple(calls),
        open=tuple(unfinished),
        program=tuple((labels[places[at]], calls[at]) for at in range(begin, len(entries))),
        order=tuple(
            (labels[places[at]], entries[at][1])
            for at in range(begin, len(entries))
            if labels[places[at]] != ALONE
        ),
        whole=not entries or entries[begin][0] == 0,
    )


@lru_cache(maxsize=4096)
def _past_of(labels: tuple[str, ...], columns: Columns) -> Past | None:
    """None where the entries are not in the rank's own order."""
    it = columns
    if any(later <= earlier for earlier, later in pairwise(it.records)):
        return None
    kinds = [it.of[number] for number in it.kinds]
    entries = tuple(
        (record, seq, kind.op, kind.sizes, kind.dtypes, kind.site, kind.state, kind.retired,
         kind.terms)
        for record, seq, kind in zip(it.records, it.seqs, kinds, strict=True)
    )  # fmt: skip
    return _past(labels, it.groups, entries)


def unbroken(records: Sequence[int]) -> int:
    """Where the newest ones begin between which none is left out."""
    for at in range(len(records) - 1, 0, -1):
        if records[at] - records[at - 1] > 1:
            return at
    return 0


def call_of(entry: Collective) -> Call:
    """What must be alike on all members."""
    return _call(entry.op, entry.sizes, entry.dtypes)


@lru_cache(maxsize=4096)
def _call(name: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Call:
    op = name.rpartition(":")[2] or name
    return Call(op=op, sizes=sizes, dtypes=dtypes) if same_input(name) else Call(op=op)


@lru_cache(maxsize=4096)
def undeclared(name: str, desc: str) -> Group:
    """A group of which nobody says who is in it."""
    return Group(name=name, desc=desc)


class Growing:
    """A track while it grows."""

    def __init__(self, before: Track | None = None) -> None:
        self.first = -1 if before is None else before.first
        self.calls: list[Call | None] = [] if before is None else list(before.calls)
        self.sites: list[str] = [""] * len(self.calls)
        if before is not None and before.sites:
            self.sites = list(before.sites)
        self.open: list[int] = []
        self.terms: dict[int, Terms] = {} if before is None else dict(before.terms)

    def add(self, seq: int, call: Call, site: str) -> None:
        if self.first < 0:
            self.first = seq
        at = seq - self.first
        if at == len(self.calls):
            self.calls.append(call)
            self.sites.append(site)
            return
        if at < 0:
            return
        if at > len(self.calls) + _LONGEST_GAP:  # what is older is compared with nobody's
            self.first, self.calls, self.sites = seq, [call], [site]
            return
        self.calls.extend([None] * (at + 1 - len(self.calls)))
        self.sites.extend([""] * (at + 1 - len(self.sites)))
        if self.calls[at] is None:
            self.calls[at], self.sites[at] = call, site

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1

    def frozen(self) -> Track:
        last = self.last
        return Track(
            first=self.first,
            calls=tuple(self.calls),
            enqueued=last,
            completed=min(self.open) - 1 if self.open else last,
            sites=tuple(self.sites) if any(self.sites) else (),
            terms=self.terms,
        )
