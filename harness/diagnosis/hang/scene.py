"""The waits of all ranks at one look, and what else was seen of those that matter."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from harness.diagnosis.waits.live import Stacks, rank_wait
from harness.diagnosis.waits.record import RankWait, Waits
from harness.events import EvidenceTaken
from harness.incidents import EvidenceRef
from harness.policy import Policy
from harness.state import AttemptState, Collection, RankState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`seen` is the evidence of this look by rank; a rank that did not answer has none."""

    state: RunState
    attempt: AttemptState
    policy: Policy
    look: Collection
    now_ns: int
    seen: dict[int, EvidenceTaken]
    waits: Waits

    @property
    def unseen(self) -> list[int]:
        """Living ranks that were to be looked at and that nothing was heard of."""
        ranks, unasked = self.attempt.ranks.values(), self.waits.unasked
        return [
            r.rank
            for r in ranks
            if r.exited is None and r.rank not in self.seen and r.rank not in unasked
        ]

    def rank(self, rank: int) -> RankState:
        return self.attempt.ranks[rank]

    def still_since_ns(self, rank: int) -> int:
        """Its last sign of progress: operations, steps and phases, or after those a line of output
        or a group that it began to make, which no pulse tells."""
        since_ns = max(self.rank(rank).advanced_ns, self._began_group_ns(rank))
        evidence = self.seen.get(rank)
        if evidence is None or evidence.activity is None:
            return since_ns
        said_ns = self.look.ordered_ns - int(evidence.activity.log_quiet_seconds * 1e9)
        return max(since_ns, said_ns)

    def _began_group_ns(self, rank: int) -> int:
        wait = self.waits.ranks.get(rank)
        if wait is None or wait.creating is None:
            return 0
        # A clock that is ahead of ours tells nothing.
        return wait.creating.began_ns if wait.creating.began_ns <= self.now_ns else 0

    def goes_on(self, rank: int) -> bool:
        """Whether it made progress between the two looks or after them."""
        evidence = self.seen.get(rank)
        if evidence is not None and evidence.advanced:
            return True
        return self.rank(rank).advanced_ns > self.look.ordered_ns + _SLACK_NS


_SLACK_NS = 600_000_000
"""A pulse that comes in after the order may tell of what was before it."""


def scene_of(
    state: RunState,
    attempt: AttemptState,
    look: Collection,
    now_ns: int,
    unasked: AbstractSet[int] = frozenset(),
) -> Scene:
    """All that this look has shown; `unasked` are nodes that it has left out so far."""
    assert state.run is not None
    seen: dict[int, EvidenceTaken] = {}
    waits: dict[int, RankWait] = {}
    stacks = Stacks()
    for rank in attempt.ranks.values():
        if rank.exited is not None and rank.exited.exit_code == 0:
            ref = _ref(rank, "exited", "left with exit code 0")
            waits[rank.rank] = RankWait(
                rank=rank.rank, ended="left with exit code 0", whole=True, evidence=ref
            )
        evidence = rank.evidence
        if evidence is None or evidence.collection != look.index or rank.exited is not None:
            continue
        seen[rank.rank] = evidence
        waits[rank.rank] = rank_wait(evidence, stacks)
    return Scene(
        state=state,
        attempt=attempt,
        policy=state.run.policy,
        look=look,
        now_ns=now_ns,
        seen=seen,
        waits=Waits(
            world_size=attempt.world_size,
            ranks=waits,
            unasked=frozenset(
                rank.rank
                for rank in attempt.ranks.values()
                if rank.exited is None and rank.node_rank in unasked
            ),
            shown_by=partial(_evidence_of, attempt),
        ),
    )


def _evidence_of(attempt: AttemptState, rank: int) -> EvidenceRef | None:
    """Of few of many ranks: its words are made when somebody wants them."""
    known = attempt.ranks[rank]
    evidence = known.evidence
    return None if evidence is None else _ref(known, "evidence", _shows(evidence))


def _ref(rank: RankState, of: str, shows: str) -> EvidenceRef | None:
    if of not in rank.refs:
        return None
    source, seq = rank.refs[of]
    return EvidenceRef(source=source, seq=seq, shows=f"rank {rank.rank} {shows}")


def _shows(evidence: EvidenceTaken) -> str:
    at = evidence.user_frame
    place = "" if at is None else f" in {at.function} ({at.file}:{at.line})"
    process = evidence.process
    state = "" if process is None else f", state {process.state} {process.wchan}".rstrip()
    return f"stands{place}{state}"
