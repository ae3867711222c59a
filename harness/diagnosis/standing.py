"""What is wrong with a run that goes on: ranks that disagree before anything hangs, are late all
the time, or use up what they will run out of.

A detector here is asked after every record, so it must cost next to nothing while there is no
news: `fold` keeps the sums, the detector compares them with a limit.
"""

from collections.abc import Callable

from harness.diagnosis import (
    checkpoint_files,
    doubts,
    group_clash,
    leaks,
    marks,
    replicas,
    signatures,
    straggler,
    unstepped,
    watched_files,
)
from harness.diagnosis.parts import common_coordinates, nodes_text
from harness.incidents import Finding, Verdict
from harness.state import AttemptState, RunState

DETECTORS: tuple[Callable[[AttemptState], list[Finding]], ...] = (
    group_clash.find,
    checkpoint_files.step_mismatch,
    signatures.find,
    marks.find,
    unstepped.find,
    replicas.find,
    doubts.find,
    straggler.find,
    leaks.find,
    checkpoint_files.save_failed,
    watched_files.find,
)
"""In the order of belief: what explains the others comes first."""


def standing(state: RunState) -> list[Finding]:
    """What the detectors claim about the newest attempt."""
    attempt = state.attempt
    if attempt is None:
        return []
    return [finding for find in DETECTORS for finding in find(attempt)]


def standing_verdict(state: RunState, finding: Finding) -> Verdict:
    """`finding` is believed; the others are its victims or go on as ever."""
    attempt = state.attempt
    assert attempt is not None
    involved = {*finding.ranks, *finding.victims}
    named = finding.ranks or attempt.ranks
    steps = [attempt.ranks[rank].step for rank in named if rank in attempt.ranks]
    return Verdict(
        verdict=finding.verdict,
        first_failing=finding.ranks,
        victims=finding.victims,
        innocent=tuple(sorted(attempt.ranks.keys() - involved)),
        cause=finding.cause,
        reason=finding.reason,
        confidence=finding.confidence,
        wait_share=finding.wait_share,
        onset_ns=finding.onset_ns,
        attempt=attempt.index,
        step=max(steps, default=0),
        signature=finding.signature,
        coordinates=common_coordinates(state, finding.ranks),
        node=nodes_text(attempt, finding.ranks),
        where=finding.where,
        collective=finding.collective,
        evidence=finding.evidence,
    )
