"""What the detectors look at: the newest attempt, how its ranks ended, and what the rest does."""

from collections import Counter
from dataclasses import dataclass

from harness import events as e
from harness.collectives import Collective
from harness.diagnosis.endings import Ending, endings
from harness.incidents import CollectiveRef
from harness.state import AttemptState, RankState, RunState

_WAITING_FRAMES = ("torch/distributed/", "_engine_run_backward", "torch/autograd/graph.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`endings` holds the ranks that have ended; the others are alive, as far as is known."""

    state: RunState
    attempt: AttemptState
    endings: dict[int, Ending]
    now_ns: int

    def of_kind(self, *kinds: str) -> list[Ending]:
        return [ending for ending in self.endings.values() if ending.kind in kinds]

    @property
    def alive(self) -> list[RankState]:
        return [rank for rank in self.attempt.ranks.values() if rank.rank not in self.endings]


def scene_of(state: RunState, now_ns: int) -> Scene | None:
    """None before the first attempt."""
    attempt = state.attempt
    if attempt is None:
        return None
    return Scene(state=state, attempt=attempt, endings=endings(attempt), now_ns=now_ns)


def waits(rank: RankState) -> bool:
    """Whether evidence shows a living rank inside communication: it waits for others."""
    evidence = rank.evidence
    if evidence is None:
        return False
    return pending(evidence) is not None or _in_communication(evidence)


def pending(evidence: e.EvidenceTaken) -> Collective | None:
    """The earliest operation that has not finished."""
    for entry in sorted(evidence.collectives, key=lambda entry: entry.record_id):
        if not entry.done:
            return entry
    return None


def _in_communication(evidence: e.EvidenceTaken) -> bool:
    """The main thread stands in a call of torch.distributed, outside the user's code."""
    for frame in evidence.frames:
        place = f"{frame.file} {frame.function}"
        if any(mark in place for mark in _WAITING_FRAMES):
            return True
        if evidence.user_frame is not None and frame.file == evidence.user_frame.file:
            return False
    return False


def last_common_collective(scene: Scene, ranks: list[int]) -> CollectiveRef | None:
    """The operation that most of `ranks` were in: the pending one, else the last they recorded."""
    seen: Counter[tuple[str, int]] = Counter()
    entries: dict[tuple[str, int], Collective] = {}
    for number in ranks:
        evidence = scene.attempt.ranks[number].evidence
        if evidence is None or not evidence.collectives:
            continue
        entry = pending(evidence) or max(evidence.collectives, key=lambda last: last.record_id)
        seen[(entry.pg, entry.seq_id)] += 1
        entries[(entry.pg, entry.seq_id)] = entry
    if not seen:
        return None
    return collective_ref(entries[seen.most_common(1)[0][0]])


def collective_ref(entry: Collective) -> CollectiveRef:
    return CollectiveRef(
        pg=entry.pg,
        pg_desc=entry.pg_desc,
        op=op_name(entry),
        seq_id=entry.seq_id,
        sizes=entry.sizes,
        dtype=entry.dtypes[0] if entry.dtypes else "",
    )


def op_name(entry: Collective) -> str:
    """`all_reduce` of `gloo:all_reduce`."""
    return entry.op.rpartition(":")[2] or entry.op
