"""rank_exited_early: a rank left with exit code 0 while others still needed it; where that follows
from a call that it left out earlier, or another made too many, that is told."""

from harness.diagnosis import mismatch
from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene, pending
from harness.diagnosis.signature import Signature
from harness.incidents import Finding
from harness.topology import ranks_name

_SLACK_NS = 500_000_000
"""A pulse tells of a phase with some delay; its consequences may be known before."""


def find(scene: Scene) -> list[Finding]:
    """Exit code 0 accuses nobody; the cries of those that were left behind do. A rank that is
    alive but has destroyed its groups has left as well."""
    cries = scene.of_kind("cried", "timed_out", "code")
    if not cries:
        return []
    first_cry = min(ending.at_ns for ending in cries)
    left = [*scene.of_kind("left"), *_without_groups(scene, first_cry)]
    if not left or _had_finished(scene, left, cries):
        return []
    uneven = mismatch.uneven.find(scene)
    if uneven:
        return uneven
    early = _least_advanced(_missed(scene, left, cries))
    ranks = tuple(sorted(ending.rank for ending in early))
    first = min(early, key=lambda ending: ending.at_ns)
    others = ranks_name([ending.rank for ending in cries])
    who = ranks_name(ranks)
    return [
        Finding(
            verdict="rank_exited_early",
            ranks=ranks,
            cause=f"it finished and {first.what} while the others still needed it"
            f"{_steps(scene, early)}",
            reason=f"{who} {first.what}; {others} then failed because a peer was gone, and no"
            " rank had failed before",
            confidence="proven" if first.evidence else "likely",
            onset_ns=min(first.at_ns, first_cry),
            evidence=(
                *(ref for ending in early[:8] for ref in ending.evidence),
                *(ref for ending in cries[:2] for ref in ending.evidence[:1]),
            ),
            signature=Signature(verdict="rank_exited_early", what="exit code 0").text(),
        )
    ]


def _missed(scene: Scene, left: list[Ending], cries: list[Ending]) -> list[Ending]:
    """Those that are in a group in which one that failed had still called something; all of them,
    where no record tells of one."""
    groups: set[int] = set()
    for ending in cries:
        evidence = scene.attempt.ranks[ending.rank].evidence
        entry = None if evidence is None else pending(evidence)
        if entry is not None:
            for group in scene.state.groups.values():
                if group.pg == entry.pg and ending.rank in group.ranks:
                    groups.update(group.ranks)
    return [ending for ending in left if ending.rank in groups] or left


def _had_finished(scene: Scene, left: list[Ending], cries: list[Ending]) -> bool:
    """Whether those that left were simply done: most of the ranks, with as many steps as the
    failed ones, of whom none has said that it missed a peer."""
    if any(ending.kind != "code" for ending in cries):
        return False
    furthest = max(ending.step for ending in cries)
    done = all(ending.step >= furthest > 0 for ending in left)
    return done and 2 * len(left) >= scene.attempt.world_size


def _without_groups(scene: Scene, first_cry_ns: int) -> list[Ending]:
    return [
        Ending(
            rank=rank.rank,
            kind="left",
            at_ns=rank.phase_ns,
            what="destroyed its process groups",
            step=rank.step,
            phase=rank.phase,
        )
        for rank in scene.alive
        if rank.phase == "teardown" and 0 < rank.phase_ns <= first_cry_ns + _SLACK_NS
    ]


def _least_advanced(left: list[Ending]) -> list[Ending]:
    """Of several that left, those with the fewest steps; all of them where none counts steps."""
    fewest = min(ending.step for ending in left)
    return [ending for ending in left if ending.step == fewest]


def _steps(scene: Scene, early: list[Ending]) -> str:
    """How far it and the others came, where steps were counted and differ."""
    mine = early[0].step
    furthest = scene.attempt.step
    return f" (it completed step {mine}, others {furthest})" if mine < furthest else ""
