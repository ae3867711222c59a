"""exception_hidden_by_cleanup: a rank has raised, but its clean-up keeps the exception from
surfacing. Believed only where the rank's own log shows the exception."""

from harness.diagnosis.endings import log_file
from harness.diagnosis.scene import Scene, waits
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.texts import is_cry, is_timeout, last_exception
from harness.incidents import EvidenceRef, Finding


def find(scene: Scene) -> list[Finding]:
    """Living ranks whose log ends in a traceback that is not a victim's cry."""
    if not scene.of_kind("cried", "timed_out", "code"):
        return []
    findings: list[Finding] = []
    for rank in scene.alive:
        evidence = rank.evidence
        logged = None if evidence is None else last_exception(evidence.last_lines)
        if evidence is None or logged is None:
            continue
        if is_cry(logged.text) or is_timeout(logged.text):
            continue
        if rank.phase != "teardown" and waits(rank):
            continue  # it goes on communicating: the traceback was of something it got over
        source, seq = rank.refs["evidence"]
        at = evidence.user_frame
        standing = "" if at is None else f", and stands in {at.function} ({at.file}:{at.line})"
        findings.append(
            Finding(
                verdict="exception_hidden_by_cleanup",
                ranks=(rank.rank,),
                cause=f"{logged.exc_type}: {logged.message}, kept back by its clean-up",
                reason=f"rank {rank.rank} has printed a traceback but has not ended{standing};"
                " the others failed because it had left them",
                confidence="likely",
                onset_ns=scene.attempt.trouble_ns,
                evidence=(
                    EvidenceRef(
                        source=source,
                        seq=seq,
                        shows=f"log of rank {rank.rank} ends in a traceback",
                        file=log_file(scene.attempt.index, rank.rank),
                    ),
                ),
                where=logged.where,
                signature=Signature(
                    verdict="exception_hidden_by_cleanup",
                    what=logged.exc_type,
                    detail=logged.message,
                    place=place_text(logged.where),
                ).text(),
            )
        )
    return findings
