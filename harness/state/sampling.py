"""Marks that nodes tell of groups that span several: compared as agents compare those of their own
ranks."""

from typing import TYPE_CHECKING

from harness import events as e
from harness.sightings import MarkPlace
from harness.state.marking import Book, Difference, Row, Sample, odd_ranks, steps_fewer

if TYPE_CHECKING:  # agents take from here what needs no state
    from harness.state.words import AttemptState

_MOST_BOOKS = 256


def note(
    attempt: "AttemptState", ref: tuple[str, int], event: e.MarksDiffer | e.MarksSampled
) -> None:
    """Fold what a node tells of marks."""
    if isinstance(event, e.MarksDiffer):
        attempt.marks_differ.append((event, ref))
    else:
        take_samples(attempt, event, ref)


def take_samples(attempt: "AttemptState", event: e.MarksSampled, ref: tuple[str, int]) -> None:
    """Fold one node's samples; a difference beyond doubt is noted once per group."""
    for one in event.samples:
        place = (one.pg, one.pg_desc, one.size)
        book = attempt.books.get(place)
        if book is None:
            if len(attempt.books) >= _MOST_BOOKS:
                return
            book = attempt.books[place] = Book(one.size)
        sample = Sample(
            ranks=one.ranks,
            seq=one.seq,
            counters=tuple((counter.name, counter.drift) for counter in one.counters),
            at_ns=one.at_ns,
            name=one.name,
            value=one.value,
        )
        row = book.add(one.kind, one.key, one.count, min(one.ranks), sample)
        if row is None:
            continue
        told = {(known.pg, known.pg_desc, bool(known.steps)) for known, _ in attempt.marks_differ}
        for found, steps in ((book.difference(), False), (book.unstepped, True)):
            if found is None or (one.pg, one.pg_desc, steps) in told:
                continue
            key, difference = found
            if not steps or key == one.key:  # its own mark tells the line
                known = marks_differ(
                    difference, one.pg, one.pg_desc, one.site, event.node_rank, steps
                )
                attempt.marks_differ.append((known, ref))


def marks_differ(
    found: Difference, pg: str, pg_desc: str, site: str, node_rank: int, unstepped: bool = False
) -> e.MarksDiffer:
    """`found` as an event; what only an agent can know is left out. `unstepped`: it is one of
    optimizer steps alone."""
    counted = found.counted and named(found.row) and named(found.before)
    odd, usual = odd_ranks(found)
    return e.MarksDiffer(
        node_rank=node_rank,
        pg=pg,
        pg_desc=pg_desc,
        kind=found.kind,
        site=site,
        count=found.count,
        places=places_of(found.row),
        odd=odd,
        tied=usual is None,
        agreed=found.agreed,
        count_before=found.count_before,
        seen_ns=found.first_ns,
        name=named(found.row) if counted else "",
        value=value(found.row) if counted else 0,
        value_before=value(found.before) if counted else 0,
        steps=steps_fewer(found) if unstepped else 0,
    )


def places_of(row: Row) -> tuple[MarkPlace, ...]:
    """Every rank's place, in the order of the ranks."""
    seqs = {rank: sample.seq for sample in row.values() for rank in sample.ranks}
    return tuple(MarkPlace(rank=rank, seq=seq) for rank, seq in sorted(seqs.items()))


def named(row: Row) -> str:
    """The variable that all members name; empty when they do not."""
    names = {sample.name for sample in row.values()}
    return names.pop() if len(names) == 1 else ""


def value(row: Row) -> int:
    return next(iter(row.values())).value
