"""A mismatch in words, with its evidence."""

from collections.abc import Sequence

from harness.diagnosis.mismatch.meetings import UNKNOWN, Meeting
from harness.diagnosis.scene import Scene, collective_ref, op_name
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.waits.past import call_of
from harness.incidents import EvidenceRef, Finding, Where


def finding(
    scene: Scene,
    meeting: Meeting,
    verdict: str,
    odd: Sequence[int],
    *,
    cause: str,
    reason: str,
    likely: bool = False,
) -> Finding:
    """What the `odd` ranks did at `meeting`; those on record there are the evidence."""
    shown = meeting.entries.get(odd[0]) or next(iter(meeting.entries.values()))
    where, unknown = _where(scene, odd[0]), meeting.seq == UNKNOWN
    refs = []
    for rank in sorted(meeting.entries, key=lambda rank: rank not in odd)[:8]:
        source, seq = scene.attempt.ranks[rank].refs["evidence"]
        evidence = scene.attempt.ranks[rank].evidence
        files = [] if evidence is None else [file for file in evidence.files if "flight" in file]
        refs.append(
            EvidenceRef(
                source=source,
                seq=seq,
                shows=f"rank {rank}: {call_of(meeting.entries[rank]).text}",
                file=files[0] if files else None,
            )
        )
    return Finding(
        verdict=verdict,
        ranks=tuple(odd),
        cause=cause,
        reason=reason,
        confidence="likely" if likely else "proven",
        onset_ns=scene.attempt.trouble_ns if unknown else meeting.at_ns,
        evidence=tuple(refs),
        where=where,
        collective=None if unknown else collective_ref(shown),
        signature=Signature(
            verdict=verdict, what=op_name(shown), detail=shown.pg_desc, place=place_text(where)
        ).text(),
    )


def _where(scene: Scene, rank: int) -> Where | None:
    state = scene.attempt.ranks[rank]
    if state.raised is not None and state.raised.where is not None:
        return state.raised.where
    return None if state.evidence is None else state.evidence.user_frame
