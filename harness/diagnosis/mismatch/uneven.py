"""collective_mismatch of a script that came to its end with it: one rank has called one operation
more, or fewer, and another waits at the end for what nobody calls any more."""

from harness.collectives import Collective
from harness.diagnosis.marks import where_of
from harness.diagnosis.scene import Scene, collective_ref, op_name
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.past import roles
from harness.diagnosis.waits.record import RankWait
from harness.diagnosis.waits.rhythm import Slip, slip
from harness.incidents import EvidenceRef, Finding


def find(scene: Scene) -> list[Finding]:
    """Nothing where a rank has left no record, or any has failed by itself: both can look so."""
    if scene.of_kind("raised", "signal", "lost"):
        return []
    waits = {}
    for rank in scene.attempt.ranks.values():
        if rank.evidence is None or not rank.evidence.collectives:
            return []
        waits[rank.rank] = rank_wait(rank.evidence)
    found = slip({rank: wait.order for rank, wait in waits.items()})
    return [] if found is None else [_finding(scene, found, _entry(scene, waits, found))]


def _entry(scene: Scene, waits: dict[int, RankWait], found: Slip) -> Collective:
    """The call that ends the round."""
    tracks, evidence = waits[found.rank].tracks, scene.attempt.ranks[found.rank].evidence
    assert evidence is not None
    named = dict(zip(roles(tuple(tracks)), tracks, strict=True))
    place = named[found.role].name, found.seq
    return next(entry for entry in evidence.collectives if (entry.pg, entry.seq_id) == place)


def _finding(scene: Scene, found: Slip, entry: Collective) -> Finding:
    where = where_of(entry.site)
    source, seq = scene.attempt.ranks[found.rank].refs["evidence"]
    shows = f"rank {found.rank}: {op_name(entry)} #{entry.seq_id}, after {found.here} others"
    return Finding(
        verdict="collective_mismatch",
        ranks=(found.rank,),
        cause=found.text,
        reason="the sizes match, so all went on as if nothing were, until a rank waited at the end"
        " for a call that no other makes any more",
        confidence="likely",
        onset_ns=entry.created_ns,
        evidence=(EvidenceRef(source=source, seq=seq, shows=shows),),
        where=where,
        collective=collective_ref(entry),
        signature=Signature(
            verdict="collective_mismatch", what=op_name(entry), detail=entry.pg_desc,
            place=place_text(where),
        ).text(),
    )  # fmt: skip
