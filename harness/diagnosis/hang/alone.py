"""Ranks that nobody waits for and that still do not go on: all of them stuck at the start, or the
last ones on their way out."""

from dataclasses import replace

from harness.diagnosis.hang.patience import Patience, for_rank, is_idle, stretched
from harness.diagnosis.hang.places import place_of
from harness.diagnosis.hang.scene import Scene
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.waits.live import in_communication
from harness.diagnosis.waits.stuck import LOCK_FILE, waits_for_lock_file
from harness.events import EvidenceTaken
from harness.incidents import Verdict, Where
from harness.sightings import ThreadTaken
from harness.topology import ranks_name

_ENDING = (
    ("threading.py", "_shutdown"),
    ("threading.py", "_register_atexit"),
    ("concurrent/futures/thread.py", "_python_exit"),
    ("multiprocessing/util.py", "_exit_function"),
    ("weakref.py", "_exitfunc"),
)
_PAUSE_FACTOR = 3.0
_DEEP = 40
"""Of a deeper stack the outermost frames may be left out."""
_NO_INTERPRETER = "interpreter"
_NO_RECORD = "flight record: "


def verdicts(scene: Scene) -> list[Verdict]:
    """At most one: what all ranks that are left do."""
    left = [rank.rank for rank in scene.attempt.ranks.values() if rank.exited is None]
    seen = [scene.seen[rank] for rank in left if rank in scene.seen]
    if not left or any(_waits(scene, rank) for rank in left):
        return []
    if all(_ends(scene, evidence) for evidence in seen):
        return [_teardown(scene, seen)]
    if any(_ends(scene, evidence) for evidence in seen) or not all(is_idle(s) for s in seen):
        return []
    if len(seen) < scene.attempt.world_size or len(seen) == 1:
        return []  # the others are done: what is left may do what it likes
    if any(not s.groups or scene.rank(s.rank).phase == "teardown" for s in seen):
        return []  # no ranks that belong together (any more), or not to be seen into
    outside = [s for s in seen if not _may_wait(s)] or seen
    return [_outside(scene, outside, [s for s in seen if s not in outside])]


def at_the_end(scene: Scene, rank: int) -> Patience:
    """For a rank that has only to end."""
    shown = for_rank(scene, rank)
    if shown.seconds is None:
        return shown
    return Patience(
        seconds=stretched(scene.policy.teardown_patience, scene.seen[rank]),
        why="clean-up at the end may take its time",
    )


def together(scene: Scene, rank: int) -> Patience:
    """For one of ranks that pause together: a pause of all between two epochs is nothing."""
    shown = for_rank(scene, rank)
    if shown.seconds is None:
        return shown
    begun = scene.rank(rank).collectives or scene.rank(rank).step
    least = scene.policy.start_patience * (_PAUSE_FACTOR if begun else 1.0)
    return replace(shown, seconds=max(shown.seconds, least))


def _waits(scene: Scene, rank: int) -> bool:
    wait = scene.waits.ranks[rank]
    return wait.head is not None or wait.creating is not None


def _may_wait(evidence: EvidenceTaken) -> bool:
    """Whether it may stand in an operation that nothing is known of: its record was not to be had,
    and its stack does not show it elsewhere."""
    unheard = any(text.startswith(_NO_RECORD) for text in evidence.missing)
    return unheard and (not evidence.frames or in_communication(evidence.frames))


def _ends(scene: Scene, evidence: EvidenceTaken) -> bool:
    """Whether the script of the rank is over and its interpreter is being taken down."""
    for frame in evidence.frames:
        if any(frame.file.endswith(file) and frame.function == name for file, name in _ENDING):
            return True
    if not evidence.frames:
        gone = any(_NO_INTERPRETER in text for text in evidence.missing)
        return gone or scene.rank(evidence.rank).phase == "teardown"
    whole = evidence.frames_by.startswith("py-spy") and len(evidence.frames) < _DEEP
    if whole and evidence.frames[-1].function != "<module>":
        return True  # an exit handler: the script's own lines are no longer below it
    return scene.rank(evidence.rank).phase == "teardown" and evidence.user_frame is None


def _teardown(scene: Scene, seen: list[EvidenceTaken]) -> Verdict:
    ranks = tuple(evidence.rank for evidence in seen)
    done = tuple(sorted(scene.attempt.ranks.keys() - set(ranks)))
    where = seen[0].user_frame or _of_thread(seen[0]) or _innermost(seen[0])
    doing = f", in {where.function}" if where is not None else ""
    living = "".join(_stands(thread) for thread in seen[0].threads)
    others = f"; {ranks_name(done)} ended with exit code 0" if done else ""
    return _verdict(
        scene,
        "teardown_hang",
        seen,
        cause=f"the script is over on every rank, and {ranks_name(ranks)} cannot end{doing}: a"
        f" thread that is no daemon, an exit handler or a destructor{living}",
        reason=f"{ranks_name(ranks)} finished its script and shows no sign of work{others};"
        " training is complete, ending it loses nothing",
        where=where,
        innocent=done,
    )


def _outside(scene: Scene, seen: list[EvidenceTaken], others: list[EvidenceTaken]) -> Verdict:
    """`seen` wait for no other rank. `others` may stand in an operation and wait for them."""
    begun = any(scene.rank(s.rank).collectives or scene.rank(s.rank).step for s in seen)
    ranks = tuple(evidence.rank for evidence in seen)
    places = {place_of(evidence) for evidence in seen}
    where = seen[0].user_frame
    at = f" in {where.function}" if where is not None and len(places) == 1 else ""
    waits = {evidence.process.wchan for evidence in seen if evidence.process is not None}
    asleep = f", asleep in {waits.pop()}" if len(waits) == 1 else ""
    many = len(ranks) > 1
    stand, doing = ("stand", "do nothing") if many else ("stands", "does nothing")
    if all(any(waits_for_lock_file(f"{f.file}:{f.function}") for f in s.frames) for s in seen):
        doing = f"each {LOCK_FILE}" if many else LOCK_FILE
    kind = "rank_stuck_outside_collective" if begun else "stuck_before_first_collective"
    before = "between two collectives" if begun else "before the first collective"
    who, rest = "all ranks", "none waits for another rank, so all wait for something outside"
    innocent = tuple(evidence.rank for evidence in others)
    if others:
        who = ranks_name(ranks)
        unheard = next(text for text in others[0].missing if text.startswith(_NO_RECORD))
        rest = (
            f"{ranks_name(innocent)} may wait for that ({unheard}), and that for something outside"
        )
    return _verdict(
        scene,
        kind,
        seen,
        cause=f"{who} {stand}{at} {before}{asleep} and {doing}",
        reason=f"{ranks_name(ranks)} used no CPU, moved no data and printed nothing; {rest}:"
        " a file, a lock, a service",
        where=where,
        innocent=innocent,
    )


def _stands(thread: ThreadTaken) -> str:
    where = thread.where
    return f"; its thread {thread.name} is in {where.function} ({where.file}:{where.line})"


def _of_thread(evidence: EvidenceTaken) -> Where | None:
    """The main thread waits for the others: where the only one stands."""
    return evidence.threads[0].where if len(evidence.threads) == 1 else None


def _innermost(evidence: EvidenceTaken) -> Where | None:
    if not evidence.frames:
        return None
    frame = evidence.frames[0]
    return Where(file=frame.file, line=frame.line, function=frame.function)


def _verdict(
    scene: Scene,
    kind: str,
    seen: list[EvidenceTaken],
    *,
    cause: str,
    reason: str,
    where: Where | None,
    innocent: tuple[int, ...],
) -> Verdict:
    ranks = tuple(evidence.rank for evidence in seen)
    return Verdict(
        verdict=kind,
        first_failing=ranks,
        victims=(),
        innocent=innocent,
        cause=cause,
        reason=reason,
        confidence="likely",
        onset_ns=min(scene.rank(rank).advanced_ns for rank in ranks),
        attempt=scene.attempt.index,
        step=0,
        signature=Signature(verdict=kind, what="", place=place_text(where)).text(),
        where=where,
        evidence=tuple(ref for ref in map(scene.waits.ref, ranks[:8]) if ref is not None),
    )
