"""timeout_waiting_for_slow_rank: ranks gave up waiting for one that is alive and at work."""

from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene, waits
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.texts import names_late_ranks
from harness.incidents import EvidenceRef, Finding
from harness.state import RankState
from harness.topology import ranks_text


def find(scene: Scene) -> list[Finding]:
    """Whoever is alive and in no communication is who the others waited for; a monitored barrier
    names it itself."""
    timeouts = scene.of_kind("timed_out")
    if not timeouts:
        return []
    named = {rank for ending in timeouts for rank in names_late_ranks(ending.text)}
    seen = [rank for rank in scene.alive if rank.evidence is not None]
    late = [rank for rank in seen if (rank.rank in named if named else not waits(rank))]
    if not late:
        return []
    return [_finding(late, timeouts)]


def _finding(late: list[RankState], timeouts: list[Ending]) -> Finding:
    first = min(timeouts, key=lambda ending: ending.at_ns)
    ranks = tuple(sorted(rank.rank for rank in late))
    who = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {ranks_text(ranks)} are"
    evidence = late[0].evidence
    where = None if evidence is None else evidence.user_frame
    doing = "" if where is None else f", in {where.function}"
    state = "" if evidence is None or evidence.process is None else evidence.process.state
    busy = {"R": " and computing", "D": " and reading or writing"}.get(state, "")
    waited = ranks_text([ending.rank for ending in timeouts])
    return Finding(
        verdict="timeout_waiting_for_slow_rank",
        ranks=ranks,
        cause=f"rank {waited} gave up waiting: {first.says}; {who} alive{busy}{doing}",
        reason=f"rank {waited} failed by a timeout of the group, not by a lost peer, while {who}"
        f" alive{busy}, outside any collective",
        confidence="proven" if busy else "likely",
        onset_ns=first.at_ns,
        evidence=(
            *first.evidence,
            *(
                EvidenceRef(source=source, seq=seq, shows=f"rank {rank.rank} at work{doing}")
                for rank in late[:8]
                for source, seq in ([rank.refs["evidence"]] if "evidence" in rank.refs else [])
            ),
        ),
        where=where,
        signature=Signature(
            verdict="timeout_waiting_for_slow_rank", what=first.what, place=place_text(where)
        ).text(),
    )
