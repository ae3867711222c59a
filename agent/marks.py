"""Compares the program marks of this node's ranks, and samples them for groups of several nodes.

A desync that hangs nothing shows here: ranks come to the same mark with different numbers of
collectives behind them. What makes it one is in `harness.state.marking`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from harness import events as e
from harness.agent import flight
from harness.agent.workers import Worker
from harness.collectives import Collective
from harness.sightings import MarkCounter, MarkSample
from harness.state.marking import Book, Difference, Row, Sample, odd_ranks
from harness.state.sampling import marks_differ
from harness.wire.waiting import until_beat
from harness.worker.marklog import KINDS, Mark

SHORTEST_SECONDS = 0.01
LONGEST_SECONDS = 0.25
_SAMPLE_SECONDS = 1.0
_SAMPLES_A_SECOND = 4
_OP_SECONDS = 0.03
"""Longest wait for the name of the operation: meanwhile the desync goes on."""
_ALIKE = 8
_MOST_SAMPLES = 64
Report = Callable[[int, e.Event], None]
"""Takes an attempt and an event of it."""


async def watch(workers: Callable[[], Collection[Worker]], node_rank: int, report: Report) -> None:
    """Compare for ever, a few times per step of the program."""
    pause, comparison = LONGEST_SECONDS, None
    while True:
        present = [worker for worker in workers() if worker.guest]
        if present and (comparison is None or comparison.attempt != present[0].attempt):
            comparison = Comparison(present[0].attempt, node_rank)
        most = 0
        if comparison is not None and present:
            most = comparison.look(present)
            for news in comparison.news(time.monotonic()):
                told: e.Event = news
                if isinstance(news, e.MarksDiffer) and not news.steps:
                    told = await _with_op(news, present)
                report(comparison.attempt, told)
        # Two marks of a rank since the last look are too many: the next one could be in time.
        pause = pause / 2 if most > 1 else pause if most else pause * 1.2
        pause = min(max(pause, SHORTEST_SECONDS), LONGEST_SECONDS)
        # As far as that goes together with the pulses.
        await asyncio.sleep(until_beat(pause) if pause == LONGEST_SECONDS else pause)


class _Group:
    """One group as far as this node has a part in it."""

    def __init__(self, pg: str, pg_desc: str, size: int, local: tuple[int, ...]) -> None:
        self.pg = pg
        self.pg_desc = pg_desc
        self.size = size
        self.local = local
        self.book = Book(len(local))
        self.told = False
        self.unstepped = False
        """That steps alone differ has been told."""


class Comparison:
    """The marks of one attempt's ranks on this node."""

    def __init__(self, attempt: int, node_rank: int) -> None:
        self.attempt = attempt
        self._node_rank = node_rank
        self._groups: dict[tuple[str, str, tuple[int, ...]], _Group] = {}
        self._known: dict[tuple[int, int], _Group | None] = {}
        self._sites: dict[int, str] = {}
        self._found: list[e.Event] = []
        self._samples: list[MarkSample] = []
        self._sampled_at = 0.0
        self._strides: dict[tuple[int, int], tuple[int, int, int]] = {}

    def look(self, workers: Sequence[Worker]) -> int:
        """Read what is new; the most marks that a rank has made since the last look."""
        most = 0
        by_rank = {worker.rank: worker for worker in workers}
        for worker in workers:
            lost = worker.logs.marks.lost
            marks = worker.logs.marks.new()
            if worker.logs.marks.lost != lost:
                for group in self._groups.values():
                    group.book.interrupt()
            most = max(most, len(marks))
            for mark in marks:
                self._take(by_rank, worker, mark)
        return most

    def news(self, now: float) -> list[e.Event]:
        """Events to report at `now` (monotonic seconds)."""
        found, self._found = self._found, []
        if self._samples and now - self._sampled_at >= _SAMPLE_SECONDS:
            self._sampled_at = now
            samples, self._samples = tuple(self._samples), []
            found.append(e.MarksSampled(node_rank=self._node_rank, samples=samples))
        return found

    def _take(self, by_rank: dict[int, Worker], worker: Worker, mark: Mark) -> None:
        logs = worker.logs
        if mark.key not in self._sites:
            self._sites[mark.key] = logs.sites.text(mark.site)
        name = logs.sites.text(mark.name) if mark.name else ""
        for number, seq in mark.groups:
            group = self._group(by_rank, worker, number)
            if group is None or group.told or worker.rank not in group.local:
                continue
            sample = Sample(
                ranks=(worker.rank,), seq=seq, counters=mark.counters, at_ns=mark.at_ns,
                name=name, value=mark.value,
            )  # fmt: skip
            kind = KINDS[mark.kind]
            row = group.book.add(kind, mark.key, mark.count, worker.rank, sample)
            if row is None:
                continue
            if group.size > len(group.local):
                self._sample(group, mark, row)
            found = group.book.difference() if len(group.local) > 1 else None
            if found is not None:
                group.told = True
                self._found.append(self._difference(by_rank, group, *found))
            elif group.book.unstepped is not None and not group.unstepped:
                group.unstepped = True
                key, steps = group.book.unstepped
                self._found.append(
                    marks_differ(
                        steps, group.pg, group.pg_desc, self._sites.get(key, ""),
                        self._node_rank, unstepped=True,
                    )
                )  # fmt: skip

    def _group(self, by_rank: dict[int, Worker], worker: Worker, number: int) -> _Group | None:
        """None for one whose members are not on record."""
        known = (worker.rank, number)
        if known not in self._known:
            made = worker.logs.group(number)
            self._known[known] = None
            if made is not None and worker.rank in made.ranks:
                key = (made.pg, made.pg_desc, made.ranks)
                if key not in self._groups:
                    local = tuple(rank for rank in made.ranks if rank in by_rank)
                    self._groups[key] = _Group(made.pg, made.pg_desc, len(made.ranks), local)
                self._known[known] = self._groups[key]
        return self._known[known]

    # --- several nodes -------------------------------------------------------------------------

    def _sample(self, group: _Group, mark: Mark, row: Row) -> None:
        """Keep the row for the controller when its count is one that all nodes tell: a multiple of
        a power of two that comes about once a second."""
        count, seqs = mark.count, {sample.seq for sample in row.values()}
        if count % self._stride(mark) or len(seqs) != 1 or len(self._samples) >= _MOST_SAMPLES:
            return
        first = min(row.values(), key=lambda sample: sample.ranks)
        common = set(first.counters).intersection(*(s.counters for s in row.values()))
        self._samples.append(
            MarkSample(
                pg=group.pg, pg_desc=group.pg_desc, size=group.size, ranks=group.local,
                kind=KINDS[mark.kind], key=mark.key, site=self._sites[mark.key], count=count,
                seq=seqs.pop(), at_ns=max(sample.at_ns for sample in row.values()),
                counters=tuple(MarkCounter(name=n, drift=d) for n, d in sorted(common)),
                name=first.name, value=first.value,
            )
        )  # fmt: skip

    def _stride(self, mark: Mark) -> int:
        """Of counts that are told. It only ever doubles, so that what one node leaves out another
        may tell, and no node tells what the other never does."""
        stride, since, at_ns = self._strides.get((mark.kind, mark.key), (1, 0, mark.at_ns))
        if mark.count - since >= 16:
            took = (mark.at_ns - at_ns) / 1e9
            pause = max(_SAMPLE_SECONDS, self._spanning() / _SAMPLES_A_SECOND)
            while stride * took < (mark.count - since) * pause / 2:
                stride *= 2
            since, at_ns = mark.count, mark.at_ns
        self._strides[mark.kind, mark.key] = (stride, since, at_ns)
        return stride

    def _spanning(self) -> int:
        """Tracks of groups that span nodes."""
        groups = self._groups.values()
        return sum(len(group.book.tracks) for group in groups if group.size > len(group.local))

    # --- what is found -------------------------------------------------------------------------

    def _difference(
        self, by_rank: dict[int, Worker], group: _Group, key: int, found: Difference
    ) -> e.MarksDiffer:
        site = self._sites.get(key, "")
        event = marks_differ(found, group.pg, group.pg_desc, site, self._node_rank)
        odd, usual = odd_ranks(found)
        if usual is None:
            return event
        return replace(event, left_out=self._left_out(by_rank, group, found, odd, usual))

    def _left_out(
        self,
        by_rank: dict[int, Worker],
        group: _Group,
        found: Difference,
        odd: tuple[int, ...],
        usual: int,
    ) -> str:
        """The line that only one side called between the mark before and the first differing one;
        empty when no line was noted, as for what DDP calls."""
        other = next(rank for rank, sample in found.row.items() if sample.seq == usual)
        mine = self._lines(by_rank[odd[0]], group, found)
        theirs = self._lines(by_rank[other], group, found)
        fewer = found.row[odd[0]].seq < usual
        extra = theirs - mine if fewer else mine - theirs
        return next(iter(extra), "")

    def _lines(self, worker: Worker, group: _Group, found: Difference) -> Counter[str]:
        since, until = found.before[worker.rank].at_ns, found.row[worker.rank].at_ns
        return Counter(
            call.site
            for call in worker.logs.sites.calls()
            if since <= call.begun_ns < until
            and self._known.get((worker.rank, call.group)) is group
        )


async def _with_op(event: e.MarksDiffer, workers: Sequence[Worker]) -> e.MarksDiffer:
    """With what the other ranks called at the place in question, if that can be had at once."""
    seqs = {place.rank: place.seq for place in event.places if place.rank not in event.odd}
    worker = next((worker for worker in workers if worker.rank in seqs), None)
    if worker is None:
        return event
    try:
        data = await flight.ask(worker.files.server, "fr_trace_json", _OP_SECONDS)
    except flight.Unanswered:
        if worker.snapshot is None:
            return event
        data = worker.snapshot.data
    entry = _entry(data, event.pg, seqs[worker.rank])
    if entry is None:
        return event
    dtype = entry.dtypes[0] if entry.dtypes else ""
    return replace(event, op=entry.op.rpartition(":")[2], sizes=entry.sizes, dtype=dtype)


def _entry(data: bytes, pg: str, seq: int) -> Collective | None:
    """The entry at that place; else the last one where all of the last ones are alike."""
    try:
        entries = flight.parse(flight.newest_entries(data))
    except (ValueError, TypeError, IndexError, KeyError):
        return None
    last = [entry for entry in entries if entry.pg == pg]
    for entry in last:
        if entry.seq_id == seq:
            return entry
    kinds = {(entry.op, entry.sizes, entry.dtypes) for entry in last[-_ALIKE:]}
    return last[-1] if len(kinds) == 1 else None
