"""Digests in the words of the diagnosis. What many ranks have in common is kept once."""

from array import array
from collections.abc import Mapping

from harness.diagnosis.waits.record import Call, Group, P2pKey, Pending, RankWait, Track
from harness.flightrecord.digest import Digest, Where
from harness.incidents import EvidenceRef
from harness.incidents import Where as UserLine
from harness.topology import MOST_RANKS


class Translator:
    """Makes a RankWait of each digest; equal calls, groups and histories become one object."""

    def __init__(self) -> None:
        self._calls: dict[Call, Call] = {}
        self._ranks: dict[str, tuple[int, ...] | None] = {}
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._tables: dict[tuple[object, ...], list[Call]] = {}
        self._histories: dict[tuple[int, bytes], tuple[Call | None, ...]] = {}
        self._programs: dict[tuple[object, ...], tuple[tuple[str, Call], ...]] = {}

    def groups(self, digest: Digest) -> list[Group]:
        return [self._group(*row) for row in digest["groups"]]

    def rank_wait(self, rank: int, digest: Digest, file: str) -> RankWait:
        groups = self.groups(digest)
        calls = self._table(digest)
        tracks = {
            groups[at]: Track(
                first=first,
                calls=self._history(calls, ids),
                enqueued=enqueued,
                completed=completed,
            )
            for at, first, ids, enqueued, completed in digest["tracks"]
        }
        return RankWait(
            rank=rank,
            pending=tuple(self._pending(groups, calls, row) for row in digest["pending"]),
            tracks=tracks,
            posted=_posted(groups, digest),
            whole=digest["whole"],
            cut=digest["cut"],
            program=self._program(groups, calls, digest["program"]),
            last_where=_line(digest["last_where"]),
            evidence=EvidenceRef(
                source="dump", seq=rank, shows=f"flight record of rank {rank}", file=file
            ),
        )

    def _group(self, name: str, desc: str, ranks: str) -> Group:
        key = (name, desc, ranks)
        if key not in self._groups:
            if ranks not in self._ranks:
                self._ranks[ranks] = parse_ranks(ranks)
            self._groups[key] = Group(name=name, desc=desc, ranks=self._ranks[ranks])
        return self._groups[key]

    def _table(self, digest: Digest) -> list[Call]:
        key = tuple(digest["calls"])
        if key not in self._tables:
            made = [Call(op=op, sizes=sizes, dtypes=dtypes) for op, sizes, dtypes in key]
            self._tables[key] = [self._calls.setdefault(call, call) for call in made]
        return self._tables[key]

    def _history(self, calls: list[Call], ids: bytes) -> tuple[Call | None, ...]:
        key = (id(calls), ids)
        if key not in self._histories:
            numbers = array("I")
            numbers.frombytes(ids)
            table: list[Call | None] = [None, *calls]
            self._histories[key] = tuple([table[number] for number in numbers])
        return self._histories[key]

    def _program(
        self, groups: list[Group], calls: list[Call], rows: list[tuple[int, int]]
    ) -> tuple[tuple[str, Call], ...]:
        key = (id(calls), tuple(group.desc for group in groups), tuple(rows))
        if key not in self._programs:
            self._programs[key] = tuple((groups[at].label, calls[call - 1]) for at, call in rows)
        return self._programs[key]

    def _pending(
        self,
        groups: list[Group],
        calls: list[Call],
        row: tuple[int, int, int, int, int, bool, int, Where | None],
    ) -> Pending:
        at, seq, call, created_ns, peer, send, batch, where = row
        return Pending(
            group=groups[at],
            seq=seq,
            call=calls[call - 1],
            created_ns=created_ns,
            peers=() if peer < 0 else (_global(groups[at], peer),),
            send=send,
            batch=batch,
            where=_line(where),
        )


def parse_ranks(text: str) -> tuple[int, ...] | None:
    """`[0, 1, 2]` as numbers; None where it is nothing of the kind."""
    try:
        ranks = tuple(int(part) for part in text.strip("[]() ").split(",") if part.strip())
    except ValueError:
        return None
    return ranks if ranks and all(0 <= rank < MOST_RANKS for rank in ranks) else None


def _global(group: Group, peer: int) -> int:
    """Dumps name peers by their place in the group."""
    if group.ranks is not None and peer < len(group.ranks):
        return group.ranks[peer]
    return peer


def _posted(groups: list[Group], digest: Digest) -> Mapping[P2pKey, int] | None:
    if not digest["whole"]:
        return None
    return {
        (_global(groups[at], peer), send, groups[at].name): count
        for at, peer, send, count in digest["posted"]
    }


def _line(where: Where | None) -> UserLine | None:
    return None if where is None else UserLine(file=where[0], line=where[1], function=where[2])
