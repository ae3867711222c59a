"""collective_mismatch, before anything hangs: ranks that came equally far in their program have
called different numbers of collectives of a group."""

from harness.diagnosis.signature import Signature, place_text
from harness.events import MarksDiffer
from harness.incidents import CollectiveRef, EvidenceRef, Finding, Where
from harness.state import AttemptState
from harness.topology import ranks_name

_MARKS = {
    "step": "optimizer step",
    "backward": "backward pass",
    "forward": "training forward",
}
_WELL_KNOWN = 10
"""Counts in a row that were alike before: the rhythm of the program is beyond doubt."""


def find(attempt: AttemptState) -> list[Finding]:
    """One finding per group, the earliest first."""
    differing = sorted(
        (known for known in attempt.marks_differ if not known[0].steps),
        key=lambda known: known[0].seen_ns,
    )
    return [_finding(event, ref) for event, ref in differing]


def _finding(event: MarksDiffer, ref: tuple[str, int]) -> Finding:
    odd = event.odd
    label = event.pg_desc if event.pg_desc not in ("", "undefined") else f"group {event.pg}"
    where = where_of(event.left_out)
    source, seq = ref
    mark = _MARKS.get(event.kind, event.kind)
    cause = (
        f"{_deed(event)} between {mark} {_between(event)}: by then"
        f" {_table(event, label)}; no error, for the sizes match"
    )
    shows = f"{len(event.places)} ranks at mark {event.kind} {event.count} of {event.site}"
    return Finding(
        verdict="collective_mismatch",
        ranks=odd,
        cause=cause,
        reason=_reason(event),
        confidence="proven" if _outnumbered(event) and event.agreed >= _WELL_KNOWN else "likely",
        onset_ns=event.seen_ns,
        evidence=(EvidenceRef(source=source, seq=seq, shows=shows),),
        where=where,
        collective=CollectiveRef(
            pg=event.pg,
            pg_desc=event.pg_desc,
            op=event.op or "collective",
            seq_id=max(place.seq for place in event.places),
            sizes=event.sizes,
            dtype=event.dtype,
        ),
        signature=Signature(
            verdict="collective_mismatch", what="marks", detail=label, place=place_text(where)
        ).text(),
        victims=tuple(place.rank for place in event.places if place.rank not in odd),
    )


def where_of(site: str) -> Where | None:
    """`file:line:function` as a place."""
    head, _, function = site.rpartition(":")
    file, _, line = head.rpartition(":")
    return Where(file=file, line=int(line), function=function) if line.isdigit() else None


def _between(event: MarksDiffer) -> str:
    """`26 and 27 (step = 25 and 26)`."""
    counts = f"{event.count_before} and {event.count}"
    if not event.name:
        return counts
    return f"{counts} ({event.name} = {event.value_before} and {event.value})"


def _table(event: MarksDiffer, label: str) -> str:
    """`rank 2 had made 25 calls on default_pg, ranks 0-1,3 26`."""
    by_seq: dict[int, list[int]] = {}
    for place in event.places:
        by_seq.setdefault(place.seq, []).append(place.rank)
    (seq, ranks), *rest = sorted(by_seq.items(), key=lambda item: (len(item[1]), item[0]))
    parts = [f"{ranks_name(sorted(ranks))} had made {seq} collectives on {label}"]
    parts += [f"{ranks_name(sorted(ranks))} {seq}" for seq, ranks in rest]
    return ", ".join(parts)


def _deed(event: MarksDiffer) -> str:
    who, what = ranks_name(event.odd), event.op or "collective"
    if event.tied:
        return f"one of {who} skipped a collective or made one too many"
    usual = next(place.seq for place in event.places if place.rank not in event.odd)
    counts = {place.seq - usual for place in event.places if place.rank in event.odd}
    number = counts.pop() if len(counts) == 1 else 0
    many = f"one {what}" if abs(number) == 1 else f"{abs(number)} {what}s"
    if number < 0:
        return f"{who} skipped {many}"
    return f"{who} made {many} too many" if number > 0 else f"{who} left the common order"


def _outnumbered(event: MarksDiffer) -> bool:
    return not event.tied and 2 * len(event.odd) < len(event.places)


def _reason(event: MarksDiffer) -> str:
    reason = f"they had been alike at the {event.agreed} marks before, and differ by as much since"
    if event.name:
        reason += f"; {event.name} is the same on all of them"
    if event.tied:
        reason += "; their number does not tell which of them is wrong, so all are listed"
    elif not _outnumbered(event):
        reason += f"; the rhythm kept until then is the one that {ranks_name(event.odd)} left"
    return reason
