"""Everybody's part in a verdict: first-failing, victim or innocent, each with a reason."""

from collections.abc import Set as AbstractSet

from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene, last_common_collective, pending, waits
from harness.incidents import Finding, Verdict
from harness.state import AttemptState, RunState
from harness.topology import ranks_name, ranks_text


def verdict_of(scene: Scene, root: Finding, unasked: AbstractSet[int] = frozenset()) -> Verdict:
    """`root` is believed; what of the others? Nobody has looked at those on the nodes `unasked`."""
    state, attempt = scene.state, scene.attempt
    first = set(root.ranks)
    died = [e.rank for e in scene.endings.values() if _died_of_it(e, root) and e.rank not in first]
    unseen = {rank.rank for rank in scene.alive if rank.node_rank in unasked} - first
    seen = [rank for rank in scene.alive if rank.rank not in first and rank.rank not in unseen]
    waiting = [rank.rank for rank in seen if waits(rank)]
    finished = [
        e.rank for e in scene.endings.values() if e.rank not in first and not _died_of_it(e, root)
    ]
    at_work = sorted({rank.rank for rank in seen}.difference(waiting))
    victims = tuple(sorted([*died, *waiting]))
    reasons = [
        root.reason,
        *_sentence(died, "died of it"),
        *_sentence(waiting, f"waits for it{_in_what(scene, waiting)}"),
        *_sentence(finished, "had finished before"),
        *_sentence(at_work, "was at work and has no part in it"),
        *([f"{len(unseen):,} others were not looked at"] if unseen else []),
    ]
    return Verdict(
        verdict=root.verdict,
        first_failing=root.ranks,
        victims=victims,
        innocent=tuple(sorted([*finished, *at_work])),
        cause=root.cause,
        reason="; ".join(reasons),
        confidence=root.confidence,
        onset_ns=root.onset_ns,
        attempt=attempt.index,
        step=_step(scene, root),
        signature=root.signature,
        coordinates=common_coordinates(state, root.ranks),
        node=nodes_text(attempt, root.ranks),
        where=root.where,
        collective=root.collective or last_common_collective(scene, list(victims)),
        evidence=root.evidence,
    )


def common_coordinates(state: RunState, ranks: tuple[int, ...]) -> dict[str, int]:
    """Coordinates that all of `ranks` share: for one rank, all of its own."""
    known = [state.coordinates[rank] for rank in ranks if rank in state.coordinates]
    if not known or len(known) < len(ranks):
        return {}
    return {
        name: value
        for name, value in known[0].items()
        if all(other.get(name) == value for other in known)
    }


def _died_of_it(ending: Ending, root: Finding) -> bool:
    """Failures are consequences; an exit with code 0 is one only when it came after the onset."""
    return ending.failed or ending.at_ns > root.onset_ns


def _step(scene: Scene, root: Finding) -> int:
    """Steps completed by the first-failing rank that is furthest, before it failed."""
    steps = [scene.attempt.ranks[rank].step for rank in root.ranks if rank in scene.attempt.ranks]
    said = [scene.endings[rank].step for rank in root.ranks if rank in scene.endings]
    return max([*steps, *said, 0])


def nodes_text(attempt: AttemptState, ranks: tuple[int, ...]) -> str:
    """`node 1, host`; `nodes 0-3` for several."""
    numbers = sorted({attempt.ranks[rank].node_rank for rank in ranks if rank in attempt.ranks})
    if len(numbers) != 1:
        return f"nodes {ranks_text(numbers)}" if numbers else ""
    node = attempt.nodes.get(numbers[0])
    return f"node {numbers[0]}, {node.host}" if node is not None else f"node {numbers[0]}"


def _sentence(ranks: list[int], does: str) -> list[str]:
    if not ranks:
        return []
    if len(ranks) > 1:
        does = does.replace("waits", "wait", 1).replace("was at", "were at", 1)
        does = does.replace("has", "have")
    return [f"{ranks_name(ranks)} {does}"]


def _in_what(scene: Scene, waiting: list[int]) -> str:
    """` in all_reduce #6` when the waiting ranks' records show it."""
    for number in waiting:
        evidence = scene.attempt.ranks[number].evidence
        entry = None if evidence is None else pending(evidence)
        if entry is not None:
            return f" in {entry.op.rpartition(':')[2]} #{entry.seq_id}"
    return ""
