"""From one look at a suspected stall to a verdict, or to when it is worth looking again."""

from collections.abc import Set as AbstractSet
from dataclasses import replace

from harness import events as e
from harness.diagnosis.hang import alone, exchange, loader, patience, places
from harness.diagnosis.hang.scene import Scene, scene_of
from harness.diagnosis.parts import common_coordinates, nodes_text
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import in_communication
from harness.diagnosis.waits.nobody import NOBODY
from harness.incidents import FAMILY_OF, Verdict
from harness.state import Collection, RunState
from harness.topology import ranks_name

_SOON_NS = 400_000_000
_LONGEST_NS = 15_000_000_000
_FRESH_LOOK_NS = 1_000_000_000
"""A verdict may rest on evidence of this age, when no pulse has told of progress since."""
_AHEAD_NS = 150_000_000
"""Evidence is ordered this much earlier than it took the last time, so that it is there in time."""


def judge_look(
    state: RunState, look: Collection, now_ns: int, unasked: AbstractSet[int] = frozenset()
) -> Verdict | e.StallLooked | None:
    """What `look` shows: a verdict, or why there is none (yet); None where the nodes `unasked`,
    which it has left out so far, would have to be seen too."""
    attempt = state.attempt
    assert attempt is not None
    scene = scene_of(state, attempt, look, now_ns, unasked)
    unseen = scene.unseen
    if unseen:
        return _again(scene, f"{ranks_name(unseen)} could not be seen in time", None)
    for verdict in [*judge(scene.waits), *([] if unasked else alone.verdicts(scene))]:
        if _told(state, verdict):
            continue
        return _weigh(scene, verdict)
    return None if unasked else _again(scene, "nobody waits in vain", None)


def _weigh(scene: Scene, verdict: Verdict) -> Verdict | e.StallLooked:
    """`verdict` as the waits have it, held against time and signs of life."""
    ranks = verdict.first_failing
    moving = [rank for rank in (*ranks, *verdict.victims) if scene.goes_on(rank)]
    if moving or verdict.verdict == "straggler":
        return _again(scene, f"{ranks_name(moving or ranks)} went on meanwhile", None)
    unsure = [rank for rank in ranks if rank in scene.seen and scene.seen[rank].advanced is None]
    if unsure:
        return _again(scene, f"{ranks_name(unsure)} could be seen only once", None, soon=True)
    if _proves_itself(verdict):
        return _completed(scene, verdict)
    return _wait_for(scene, verdict)


def _proves_itself(verdict: Verdict) -> bool:
    """Whether no amount of time could make it right again."""
    if verdict.verdict == "rank_exited_early":
        return True
    if Signature.parse(verdict.signature).what == NOBODY:
        return True
    return FAMILY_OF[verdict.verdict] == "desync" and verdict.confidence != "possible"


def _wait_for(scene: Scene, verdict: Verdict) -> Verdict | e.StallLooked:
    """Time decides."""
    ranks, seen = verdict.first_failing, None
    if verdict.verdict == "network_stall":
        seen = exchange.between(scene, ranks)
        limits = {rank: patience.for_exchange(scene, ranks, seen) for rank in ranks}
        verdict = exchange.named(scene, verdict, seen)
    elif verdict.verdict == "teardown_hang":
        limits = {rank: alone.at_the_end(scene, rank) for rank in ranks}
    elif not verdict.victims:
        limits = {rank: alone.together(scene, rank) for rank in ranks}
    else:
        limits = {rank: patience.for_rank(scene, rank) for rank in ranks}
    due_ns = 0
    for rank, limit in limits.items():
        if limit.seconds is None:
            why = f"rank {rank} is waited for, but {limit.why}"
            return exchange.noted(_again(scene, why, rank), seen)
        since_ns = max(scene.still_since_ns(rank), limit.since_ns)
        rank_due_ns = since_ns + int(limit.seconds * 1e9)
        if scene.look.ordered_ns + int(limit.asleep_seconds * 1e9) < rank_due_ns:
            due_ns = max(due_ns, rank_due_ns)
    if scene.now_ns >= due_ns:
        return _completed(scene, verdict)
    first = ranks[0]
    why = f"{verdict.cause}; {limits[first].why}, so it may take longer"
    return exchange.noted(_again(scene, why, first, due_ns=due_ns), seen)


def _again(
    scene: Scene, why: str, rank: int | None, *, due_ns: int = 0, soon: bool = False
) -> e.StallLooked:
    """When to look again: when patience ends, else less and less often."""
    looks = 0 if scene.attempt.stall is None else scene.attempt.stall.looks
    fresh = 0 < due_ns < scene.now_ns + _FRESH_LOOK_NS
    if fresh:
        again_ns = due_ns
    elif due_ns:
        again_ns = due_ns - max(scene.look.took_ns, int(scene.policy.looks_apart * 1e9)) - _AHEAD_NS
    elif soon:
        again_ns = scene.now_ns + _SOON_NS
    else:
        again_ns = scene.now_ns + min(1_000_000_000 << min(looks, 8), _LONGEST_NS)
    evidence = None if rank is None else scene.seen.get(rank)
    asleep = (
        0.0 if evidence is None or rank is None else patience.asleep_seconds(scene, rank, evidence)
    )
    return e.StallLooked(
        collection=scene.look.index,
        why=why,
        again_ns=again_ns,
        ranks=() if rank is None else (rank,),
        place="" if evidence is None else places.place_of(evidence),
        settled=not fresh,
        wakes_ns=scene.now_ns + int(asleep * 1e9) if asleep else 0,
    )


def _told(state: RunState, verdict: Verdict) -> bool:
    """Whether an incident of this attempt says so already."""
    return any(
        incident.verdict.attempt == len(state.attempts) - 1
        and incident.verdict.verdict == verdict.verdict
        and incident.verdict.first_failing == verdict.first_failing
        for incident in state.incidents
    )


# --- what a run adds to the bare waits -----------------------------------------------------------


def _completed(scene: Scene, verdict: Verdict) -> Verdict:
    """With what only a run knows: attempt, step, places, and an exception held back."""
    attempt, ranks = scene.attempt, verdict.first_failing
    verdict = _of_few(scene, _with_signs(scene, _unhidden(scene, verdict)))
    silent_ns = min((scene.rank(rank).advanced_ns for rank in ranks), default=0)
    return replace(
        verdict,
        attempt=attempt.index,
        step=max((scene.rank(rank).step for rank in ranks), default=0),
        onset_ns=verdict.onset_ns or silent_ns or scene.look.ordered_ns,
        coordinates=common_coordinates(scene.state, ranks),
        node=nodes_text(attempt, ranks),
    )


def _of_few(scene: Scene, verdict: Verdict) -> Verdict:
    """With those that were not looked at because what others showed was enough."""
    unasked = sorted(scene.waits.unasked)
    if not unasked:
        return verdict
    still = [rank for rank in unasked if not scene.goes_on(rank)]
    looked = f"{len(scene.seen):,} of {scene.attempt.world_size:,} ranks were looked at"
    others = "the others" if len(still) == len(unasked) else f"{len(still):,} of the others"
    return replace(
        verdict,
        victims=tuple(sorted({*verdict.victims, *still})),
        reason=f"{verdict.reason}; {looked}, {others} make no progress either",
    )


def _with_signs(scene: Scene, verdict: Verdict) -> Verdict:
    """What else is seen of a rank that is blamed alone."""
    evidence = scene.seen.get(verdict.first_failing[0]) if len(verdict.first_failing) == 1 else None
    if evidence is None:
        return verdict
    places = loader.stands(evidence) if verdict.verdict == "dataloader_stuck" else []
    signs = []
    activity = evidence.activity
    if activity is not None and (activity.asleep_seconds or 0) >= 1:
        signs.append(f"it has put itself to sleep for another {activity.asleep_seconds:.0f} s")
    return replace(
        verdict,
        cause="; ".join([verdict.cause, *places]),
        reason="; ".join([verdict.reason, *signs]),
    )


def _unhidden(scene: Scene, verdict: Verdict) -> Verdict:
    """A rank that left the others because it raised, and whose clean-up keeps that from showing."""
    if len(verdict.first_failing) != 1:
        return verdict
    rank = verdict.first_failing[0]
    evidence = scene.seen.get(rank)
    if evidence is None or evidence.handling is None:
        return verdict
    error = evidence.handling
    if error.seen_ns < scene.rank(rank).advanced_ns - _FRESH_NS:
        return verdict  # it has got over it and worked on
    if not in_communication(evidence.frames) and not scene.rank(rank).collectives:
        return verdict  # it tries again and again to come up, in an `except`
    at = evidence.user_frame
    standing = "" if at is None else f" and stands in {at.function} ({at.file}:{at.line})"
    return replace(
        verdict,
        verdict="exception_hidden_by_cleanup",
        cause=f"{error.exc_type}: {error.message}, kept back by its clean-up",
        reason=f"rank {rank} has raised {error.exc_type}{standing}; {verdict.cause}",
        confidence="proven",
        where=error.where,
        signature=Signature(
            verdict="exception_hidden_by_cleanup",
            what=error.exc_type,
            detail=error.message,
            place=place_text(error.where),
        ).text(),
    )


_FRESH_NS = 3_000_000_000
