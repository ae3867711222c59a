"""From findings to a verdict: who failed first, who died of it, who had nothing to do with it.

Order of belief: mismatched signatures; then whatever a rank says of itself, earliest first; then
who left others behind; a victim's cry accuses nobody.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from harness.diagnosis import (
    checkpoint_files,
    cries,
    doubts,
    exception,
    exited_early,
    hidden,
    killed,
    mismatch,
    node_lost,
    slow_peer,
    special,
    teardown,
)
from harness.diagnosis.parts import verdict_of
from harness.diagnosis.scene import Scene, scene_of, waits
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import FAMILY_OF, Finding, Verdict
from harness.policy import Policy
from harness.state import RunState

_SAME_INSTANT_NS = 20_000_000
"""Cries this close to each other cannot be put in order."""

_INDIRECT = frozenset(
    {"rank_exited_early", "exception_hidden_by_cleanup", "timeout_waiting_for_slow_rank"}
)
"""Claims about ranks that did not fail themselves: believed when no failure explains itself."""


def diagnose(state: RunState, now_ns: int) -> list[Finding]:
    """What every detector claims about the newest attempt."""
    scene = scene_of(state, now_ns)
    if scene is None:
        return []
    special_findings, unexplained = special.find(scene.attempt, scene.endings.values())
    of_files, unexplained = checkpoint_files.find_fatal(scene.attempt, unexplained)
    numeric = any(finding.verdict == "nonfinite" for finding in special_findings)
    torn_down, unexplained = teardown.find(scene, unexplained)
    return [
        *mismatch.find(scene),
        *node_lost.find(scene),
        *(doubts.not_finite(scene.attempt) if numeric else []),
        *special_findings,
        *of_files,
        *torn_down,
        *killed.find(scene, unexplained),
        *exception.find(scene, unexplained),
        *exited_early.find(scene),
        *hidden.find(scene),
        *slow_peer.find(scene),
    ]


def conclude(
    state: RunState,
    findings: Sequence[Finding],
    now_ns: int,
    unasked: AbstractSet[int] = frozenset(),
) -> Verdict | None:
    """The verdict, or None while more may yet be said that would change it. `unasked` are nodes
    whose ranks were not looked at.

    Bounded: from the last of `patience_ends_ns` on there is a verdict whenever a rank has failed
    or a node is lost.
    """
    scene = scene_of(state, now_ns)
    if scene is None or not scene.attempt.trouble_ns:
        return None
    root = _root(scene, findings)
    if now_ns < scene.attempt.trouble_seen_ns + int(_patience(scene, root) * 1e9):
        return None
    return verdict_of(scene, root or _only_cries(scene), unasked)


def patience_ends_ns(state: RunState) -> list[int]:
    """Times at which waiting for another word may end."""
    attempt, run = state.attempt, state.run
    if attempt is None or run is None or not attempt.trouble_seen_ns:
        return []
    return [
        attempt.trouble_seen_ns + int(seconds * 1e9)
        for seconds in (
            run.policy.settle,
            run.policy.evidence_budget,
            _longest(run.policy),
        )
    ]


def _longest(policy: Policy) -> float:
    """A silent node is called lost, or not, within this time."""
    return max(policy.evidence_budget, policy.agent_timeout + 1.0)


def _root(scene: Scene, findings: Sequence[Finding]) -> Finding | None:
    """The finding to believe."""
    desync = [finding for finding in findings if FAMILY_OF[finding.verdict] == "desync"]
    if desync:
        return min(desync, key=_onset)
    harmless = [finding for finding in findings if finding.verdict == "teardown_abort"]
    outspoken = [
        f for f in findings if f.verdict not in _INDIRECT and not is_silent(f) and f not in harmless
    ]
    lost = next((finding for finding in outspoken if finding.verdict == "node_lost"), None)
    if lost is not None and not any(_before_loss(scene, other, lost) for other in outspoken):
        return lost
    outspoken = [finding for finding in outspoken if finding is not lost]
    if outspoken:
        return min(outspoken, key=_onset)
    # Nobody missed the rank that aborted on its way out: it explains no failure but its own.
    return _indirect_root(scene, findings) or min(harmless, key=_onset, default=None)


def _onset(finding: Finding) -> int:
    return finding.onset_ns


def is_silent(finding: Finding) -> bool:
    """An error code and not a word: it may be a root, or a victim that handled its cry."""
    return finding.verdict == "exception" and finding.confidence != "proven"


def _before_loss(scene: Scene, finding: Finding, lost: Finding) -> bool:
    """Whether `finding` explains itself and came before the loss of a node. An exception on
    another node may be a cry in unknown words, if the node was silent by then already."""
    if finding is lost or scene.state.run is None:
        return False
    if finding.verdict != "exception" or set(finding.ranks) & set(lost.ranks):
        return finding.onset_ns <= scene.attempt.lost_ns
    silence_ns = int((scene.state.run.policy.agent_timeout + 1.0) * 1e9)
    return finding.onset_ns < scene.attempt.lost_ns - silence_ns


def _indirect_root(scene: Scene, findings: Sequence[Finding]) -> Finding | None:
    hidden = [f for f in findings if f.verdict == "exception_hidden_by_cleanup"]
    slow = [f for f in findings if f.verdict == "timeout_waiting_for_slow_rank"]
    leavers = [f for f in findings if f.verdict == "rank_exited_early" or is_silent(f)]
    if hidden:
        return hidden[0]
    cries = scene.of_kind("cried", "timed_out", "code")
    first = min(cries, key=lambda ending: ending.at_ns, default=None)
    if slow and first is not None and first.kind == "timed_out":
        return slow[0]
    return min(leavers or slow, key=_onset, default=None)


def _patience(scene: Scene, root: Finding | None) -> float:
    """Seconds after the first sign for which another word could change the verdict."""
    assert scene.state.run is not None
    policy = scene.state.run.policy
    idle = [rank for rank in scene.alive if not waits(rank)]
    leaving = any(rank.phase == "teardown" for rank in idle)
    if root is None:
        if not scene.alive:
            return 0.0
        return _longest(policy) if _unanswered(scene) else policy.evidence_budget
    if FAMILY_OF[root.verdict] == "desync" or not idle:
        return 0.0
    if root.verdict == "exception_hidden_by_cleanup":
        return policy.settle  # its log tells the cause already
    if root.verdict in _INDIRECT or is_silent(root):
        return policy.evidence_budget if leaving else policy.settle
    return policy.settle if Signature.parse(root.signature).start_up else 0.0


def _unanswered(scene: Scene) -> bool:
    """Whether a node owes evidence: it may be lost."""
    return any(c.waiting for c in scene.state.collections if c.attempt == scene.attempt.index)


def _only_cries(scene: Scene) -> Finding:
    """Nobody failed by itself, as far as is known: the first to cry, for want of better."""
    failed = [ending for ending in scene.endings.values() if ending.failed]
    first = min(failed, key=lambda ending: ending.at_ns)
    now = [ending for ending in failed if ending.at_ns - first.at_ns <= _SAME_INSTANT_NS]
    world_size = scene.attempt.world_size
    blamed = cries.blame(failed, now, _listens(scene), world_size)
    ranks = tuple(rank for rank in blamed.ranks if rank in scene.attempt.ranks)
    return Finding(
        verdict="exception",
        ranks=ranks,
        cause=first.says,
        reason=f"only broken connections are reported; {blamed.shows}",
        confidence="possible",
        onset_ns=first.at_ns,
        evidence=tuple(
            ref
            for rank in ranks[:8]
            if rank in scene.endings
            for ref in scene.endings[rank].evidence
        ),
        where=first.where,
        signature=Signature(
            verdict="exception",
            what=first.what,
            detail=first.message.partition("\n")[0],
            place=place_text(first.where),
        ).text(),
    )


def _listens(scene: Scene) -> dict[str, int]:
    """The rank by the address at which it listened."""
    return {
        address: rank.rank
        for rank in scene.attempt.ranks.values()
        if rank.evidence is not None
        for address in rank.evidence.listens
    }
