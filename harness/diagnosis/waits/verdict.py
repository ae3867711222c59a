"""From beginnings to verdicts: who waits for whom, who has no part in it, in sentences."""

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.waits.disagree import divergence, terms_differ
from harness.diagnosis.waits.few import holds
from harness.diagnosis.waits.graph import Op, WaitGraph, build
from harness.diagnosis.waits.nobody import NOBODY
from harness.diagnosis.waits.record import Waits
from harness.diagnosis.waits.root import Root, what
from harness.diagnosis.waits.roots import find_roots
from harness.incidents import FAMILY_OF, CollectiveRef, Confidence, EvidenceRef, Finding, Verdict
from harness.topology import ranks_name

_SURE: tuple[Confidence, ...] = ("possible", "likely", "proven")


def judge(waits: Waits) -> list[Verdict]:
    """What the waits of all ranks amount to; empty when nobody waits in vain.

    One verdict per family: several ranks that got stuck by themselves are one incident, each with
    its own cause. A desync comes first, and everything else is its consequence when its ranks are
    waited for.
    """
    graph = build(waits)
    differing = terms_differ(graph) if graph.ops else None
    if differing is not None:
        graph = _standing_in(graph, differing.op)
    roots = find_roots(graph) if differing is None else [differing]
    if not any(FAMILY_OF[root.verdict] == "desync" for root in roots):
        earlier = divergence(graph)
        if earlier is not None:
            roots = [earlier, *(r for r in roots if r.verdict != "network_stall")]
    if waits.unasked:
        roots = [root for root in roots if holds(root, waits)]
    families: dict[str, list[Root]] = {}
    for root in roots:
        families.setdefault(FAMILY_OF[root.verdict], []).append(root)
    blamed = {rank for root in roots for rank in root.ranks}
    return [
        _verdict(graph, families[family], blamed)
        for family in sorted(families, key=lambda family: (family != "desync", family))
    ]


def _standing_in(graph: WaitGraph, op: Op) -> WaitGraph:
    """Who stands in `op` waits for those that differ there."""
    ops = tuple(
        replace(each, differ=op.differ) if (each.group, each.seq) == (op.group, op.seq) else each
        for each in graph.ops
    )
    return replace(graph, ops=ops)


def finding_of(verdict: Verdict) -> Finding:
    """The claim alone, for where findings of other detectors are weighed against it."""
    return Finding(
        verdict=verdict.verdict,
        ranks=verdict.first_failing,
        cause=verdict.cause,
        reason=verdict.reason,
        confidence=verdict.confidence,
        onset_ns=verdict.onset_ns,
        evidence=verdict.evidence,
        where=verdict.where,
        collective=verdict.collective,
        signature=verdict.signature,
    )


def _verdict(graph: WaitGraph, roots: Sequence[Root], blamed: set[int]) -> Verdict:
    first = tuple(sorted({rank for root in roots for rank in root.ranks}))
    lead = roots[0]
    waiting = _waiting_for(graph, set(first))
    if lead.op.call.op == NOBODY:
        waiting |= set(lead.op.waiters)  # there is nobody to draw an edge to
    victims = tuple(sorted(waiting - blamed))
    innocent = tuple(sorted(graph.waits.ranks.keys() - set(victims) - set(first) - blamed))
    direct = sorted({r for root in roots for r in root.op.waiters} - set(first))
    return Verdict(
        verdict=lead.verdict,
        first_failing=first,
        victims=victims,
        innocent=innocent,
        cause="; ".join(root.cause for root in roots[:4]) + _more(roots),
        reason=_reason(graph, roots, direct, victims, innocent),
        confidence=_SURE[min(_SURE.index(root.confidence) for root in roots)],
        onset_ns=min((root.onset_ns for root in roots if root.onset_ns), default=0),
        attempt=0,
        step=0,
        signature=Signature(
            verdict=lead.verdict,
            what=lead.op.call.op,
            detail=lead.op.group.desc,
            place=place_text(lead.where),
        ).text(),
        where=lead.where,
        collective=collective_ref(lead.op),
        evidence=_evidence(graph, first, direct),
    )


def _more(roots: Sequence[Root]) -> str:
    return f"; and {len(roots) - 4} more" if len(roots) > 4 else ""


def collective_ref(op: Op) -> CollectiveRef | None:
    if op.creation:
        return None
    return CollectiveRef(
        pg=op.group.name,
        pg_desc=op.group.desc,
        op=op.call.op,
        seq_id=op.seq,
        sizes=op.call.sizes,
        dtype=op.call.dtypes[0] if op.call.dtypes else "",
    )


def _waiting_for(graph: WaitGraph, first: set[int]) -> set[int]:
    """Ranks that wait for `first`, directly or through others."""
    lacking: dict[int, list[int]] = {}
    for at, op in enumerate(graph.ops):
        for rank in op.lacks:
            lacking.setdefault(rank, []).append(at)
    seen, known = set(first), set[int]()
    todo = list(first)
    while todo:
        for at in lacking.get(todo.pop(), ()):
            if at not in known:
                known.add(at)
                fresh = [rank for rank in graph.ops[at].waiters if rank not in seen]
                seen.update(fresh)
                todo += fresh
    return {rank for rank in seen if rank < graph.waits.world_size} - first


def _reason(
    graph: WaitGraph,
    roots: Sequence[Root],
    direct: list[int],
    victims: tuple[int, ...],
    innocent: tuple[int, ...],
) -> str:
    parts = []
    if all(root.tied for root in roots):
        ranks = ranks_name(sorted({rank for root in roots for rank in root.ranks}))
        parts.append(f"nothing on record tells {ranks} apart, so all of them are listed")
    elif any(root.op.waiters and not root.calls for root in roots):
        parts.append("all who wait do so for these, and these for nobody else")
    if roots[0].calls:
        parts.append("the records differ at that place, whoever was stuck by it")
    asked = [rank for rank in direct if rank in victims]
    if asked and len(roots) == 1:
        parts.append(f"{_wait(asked)} in {what(roots[0].op)}")
    elif asked:
        parts.append(f"{_wait(asked)} for them directly")
    through = [rank for rank in victims if rank not in asked]
    if through:
        parts.append(f"{_wait(through)} for those")
    if innocent:
        parts.append(f"{_wait(innocent)} for none of them")
    known = graph.waits.ranks.keys() | graph.waits.unasked
    left_none = sorted(set(range(graph.waits.world_size)) - known)
    if left_none:
        parts.append(f"{ranks_name(left_none)} left no record")
    return "; ".join(parts)


def _wait(ranks: Sequence[int]) -> str:
    return f"{ranks_name(ranks)} wait{'s' if len(ranks) == 1 else ''}"


def _evidence(
    graph: WaitGraph, first: tuple[int, ...], direct: list[int]
) -> tuple[EvidenceRef, ...]:
    refs = map(graph.waits.ref, [*first[:8], *direct[:4]])
    return tuple(ref for ref in refs if ref is not None)
