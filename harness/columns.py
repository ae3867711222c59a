"""What ranks have recorded, in columns: what thousands have in common is there once, and the
entries of one rank are made only when somebody looks at them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar, overload

from harness.collectives import Collective, GroupCreation, PointToPoint, Terms
from harness.sightings import Flow

T = TypeVar("T")


class Entries(Sequence[T]):
    """A sequence that is made of its columns at the first look, and then is what a tuple is."""

    __slots__ = ("_entries",)
    _entries: tuple[T, ...] | None

    @abstractmethod
    def _made(self) -> Iterator[T]: ...

    def entries(self) -> tuple[T, ...]:
        """All of them, oldest first."""
        if self._entries is None:
            self._entries = tuple(self._made())
        return self._entries

    def __len__(self) -> int:
        return len(self.entries())

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self.entries()[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self.entries())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Entries):
            return self.entries() == other.entries()
        return isinstance(other, tuple) and self.entries() == other

    def __hash__(self) -> int:
        return hash(self.entries())

    def __repr__(self) -> str:
        return repr(self.entries())


# --- collectives ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What entries of a flight record may have in common, as fields of `Collective`."""

    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    site: str = ""
    terms: Terms | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """What thousands of ranks record alike: columns of one length, an entry of the record each.

    `groups` are positions in `descs`, one for each group of a rank, and `kinds` such in `of`. Two
    are the same only when they are one object, so that what follows from one is worked out once.
    """

    records: tuple[int, ...]
    seqs: tuple[int, ...]
    groups: tuple[int, ...]
    kinds: tuple[int, ...]
    descs: tuple[str, ...]
    of: tuple[Kind, ...]


class Recorded(Entries[Collective]):
    """The entries of one rank's record: what it has in common with other ranks, the names of its
    own groups, and when each entry began, as nanoseconds since the one before it."""

    __slots__ = ("_last_ns", "apart_ns", "columns", "names")

    def __init__(self, columns: Columns, names: tuple[str, ...], apart_ns: tuple[int, ...]) -> None:
        self.columns, self.names, self.apart_ns = columns, names, apart_ns
        # Nearly always the one that is asked for; later on each of the numbers is far away in
        # memory.
        self._last_ns = sum(apart_ns)
        self._entries = None

    def created_ns(self, at: int) -> int:
        """Of the entry at this place."""
        last = at == len(self.apart_ns) - 1
        return self._last_ns if last else sum(self.apart_ns[: at + 1])

    def _made(self) -> Iterator[Collective]:
        it = self.columns
        rows = zip(it.records, it.seqs, it.groups, it.kinds, accumulate(self.apart_ns), strict=True)
        for record, seq, group, number, created_ns in rows:
            kind = it.of[number]
            yield Collective(
                record_id=record, pg=self.names[group], pg_desc=it.descs[group], seq_id=seq,
                op=kind.op, sizes=kind.sizes, dtypes=kind.dtypes, state=kind.state,
                retired=kind.retired, created_ns=created_ns, site=kind.site, terms=kind.terms,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.columns.records)


# --- messages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKind:
    """What messages may have in common, as fields of `PointToPoint`."""

    direction: str
    tag: int
    sizes: tuple[int, ...]
    dtype: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageColumns:
    """What thousands of ranks send and receive alike, as `Columns` are: `numbers` of the messages,
    and `ends`, by how much the rank at the other end is larger than the rank itself."""

    numbers: tuple[int, ...]
    ends: tuple[int, ...]
    groups: tuple[int, ...]
    kinds: tuple[int, ...]
    descs: tuple[str, ...]
    of: tuple[MessageKind, ...]


class Exchanged(Entries[PointToPoint]):
    """The messages of one `rank`: when each began, as nanoseconds since the one before it, and how
    long it took; as much less than nothing as it began after the year 1970 where it goes on."""

    __slots__ = ("apart_ns", "columns", "names", "rank", "took_ns")

    def __init__(
        self,
        columns: MessageColumns,
        rank: int,
        names: tuple[str, ...],
        apart_ns: tuple[int, ...],
        took_ns: tuple[int, ...],
    ) -> None:
        self.columns, self.rank, self.names = columns, rank, names
        self.apart_ns, self.took_ns = apart_ns, took_ns
        self._entries = None

    def _made(self) -> Iterator[PointToPoint]:
        it = self.columns
        times = zip(accumulate(self.apart_ns), self.took_ns, strict=True)
        rows = zip(it.numbers, it.ends, it.groups, it.kinds, times, strict=True)
        for number, end, group, place, (begun_ns, took_ns) in rows:
            kind = it.of[place]
            yield PointToPoint(
                direction=kind.direction, peer=self.rank + end, pg=self.names[group],
                pg_desc=it.descs[group], tag=kind.tag, number=number, sizes=kind.sizes,
                dtype=kind.dtype, state=kind.state, begun_ns=begun_ns, ended_ns=begun_ns + took_ns,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.columns.numbers)


# --- groups --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeGroup:
    """What ranks have in common of a group that they have made, as fields of `GroupCreation`.
    `ranks` of one world are one object, whatever groups of it and whoever tells of them."""

    pg: str
    pg_desc: str
    ranks: tuple[int, ...]
    member: bool
    failed: bool


class Creations(Entries[GroupCreation]):
    """The groups that one rank has made, with its own `places` in them; times as in `Exchanged`.

    `all_ended`: it is certain, without a look, that the rank is in none of them.
    """

    __slots__ = ("all_ended", "apart_ns", "groups", "places", "took_ns")

    def __init__(
        self,
        groups: tuple[MadeGroup, ...],
        places: tuple[int, ...],
        apart_ns: tuple[int, ...],
        took_ns: tuple[int, ...],
    ) -> None:
        self.groups, self.places = groups, places
        self.apart_ns, self.took_ns = apart_ns, took_ns
        self.all_ended = min(took_ns, default=0) >= 0
        self._entries = None

    def _made(self) -> Iterator[GroupCreation]:
        rows = zip(
            self.groups, self.places, accumulate(self.apart_ns), self.took_ns, strict=True
        )  # fmt: skip
        for group, place, begun_ns, took_ns in rows:
            yield GroupCreation(
                pg=group.pg, pg_desc=group.pg_desc, ranks=group.ranks, member=group.member,
                begun_ns=begun_ns, ended_ns=begun_ns + took_ns, failed=group.failed, place=place,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.groups)


# --- connections ---------------------------------------------------------------------------------

FLOW_NUMBERS = 9


class Flows(Entries[Flow]):
    """The connections of one rank: `peers` of each, and FLOW_NUMBERS `numbers`, places of the
    addresses in `hosts` and then the other fields of a `Flow` in their order."""

    __slots__ = ("hosts", "numbers", "peers")

    def __init__(
        self, hosts: tuple[str, ...], peers: tuple[tuple[int, ...], ...], numbers: tuple[int, ...]
    ) -> None:
        self.hosts, self.peers, self.numbers = hosts, peers, numbers
        self._entries = None

    def _made(self) -> Iterator[Flow]:
        rows = zip(*(self.numbers[at::FLOW_NUMBERS] for at in range(FLOW_NUMBERS)), strict=True)
        for peers, row in zip(self.peers, rows, strict=True):
            local, remote, connections, sent, received, total, pending, tries, unanswered = row
            yield Flow(
                local=self.hosts[local], remote=self.hosts[remote], peers=peers,
                connections=connections, sent_bytes=sent, received_bytes=received,
                total_bytes=total, pending_bytes=pending, tries=tries, unanswered=bool(unanswered),
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.peers)
