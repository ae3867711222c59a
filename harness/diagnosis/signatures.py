"""collective_mismatch, shape_mismatch while the run goes on: members of a group called different
things at one place, and the backend let it pass. Seen in the arrivals that agents report."""

from collections import Counter

from harness.diagnosis.signature import Signature
from harness.incidents import CollectiveRef, EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.arrivals import GroupArrivals
from harness.topology import ranks_name


def find(attempt: AttemptState) -> list[Finding]:
    """The first such place of each group, once all have gone on from it: while they are held there,
    what they do tells more than what they called."""
    return [
        _finding(attempt, group, seq, calls)
        for group, seq, calls in attempt.arrivals.differing.values()
        if group.last is not None and group.last.seq > seq
    ]


def _finding(
    attempt: AttemptState, group: GroupArrivals, seq: int, calls: dict[int, str]
) -> Finding:
    counts = Counter(calls.values())
    (usual, most), *others = counts.most_common()
    tied = most < 2 or others[0][1] == most
    odd = tuple(sorted(rank for rank, call in calls.items() if tied or call != usual))
    ops = {call.partition(" ")[0] for call in calls.values()}
    verdict = "collective_mismatch" if len(ops) > 1 else "shape_mismatch"
    told = ", ".join(
        f"{ranks_name(sorted(rank for rank in calls if calls[rank] == call))} {call}"
        for call in counts
    )
    label = group.desc if group.desc not in ("", "undefined") else f"group {group.pg}"
    source, ref = attempt.arrivals.ref
    return Finding(
        verdict=verdict,
        ranks=odd,
        cause=f"#{seq} on {label}: {told}; the backend let it pass, with wrong numbers",
        reason="the flight records of all members differ at that place"
        + ("; their number does not tell which of them is wrong" if tied else ""),
        confidence="proven",
        onset_ns=min((attempt.ranks[rank].advanced_ns for rank in odd), default=0),
        evidence=(EvidenceRef(source=source, seq=ref, shows="what the ranks called, and when"),),
        collective=CollectiveRef(
            pg=group.pg, pg_desc=group.desc, op=calls[odd[0]].partition(" ")[0], seq_id=seq
        ),
        signature=Signature(verdict=verdict, what=label, detail=calls[odd[0]]).text(),
        victims=tuple(sorted(calls.keys() - set(odd))),
    )
