"""Micro-batches that a neighbour has computed again: which of the two was wrong.

Each rank of a ring computes one of the rank before it. A device that always computes wrongly is in
two pairs, its own batch and that of its neighbour; a fault of the moment is in one.
"""

from collections.abc import Sequence

from harness.diagnosis.signature import Signature
from harness.incidents import Confidence, EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.doubts import MASKED, Told
from harness.topology import ranks_name


def find(attempt: AttemptState, told: Sequence[Told]) -> list[Finding]:
    """What the rounds that came out bad show together."""
    pairs = list({(each.rank, each.doubt.peer): each for each in reversed(told)}.values())[::-1]
    if not pairs:
        return []
    never = all(each.doubt.looks == each.doubt.failed for each in told)
    if never and len(pairs) >= pairs[0].doubt.ring > 1:
        return []  # none has ever come to the same numbers: nothing can be compared here
    common = frozenset.intersection(*[_ranks(each) for each in pairs])
    if len(pairs) == 1:
        return [_single(pairs[0])]
    if not common:
        return [_everywhere(pairs)]
    one = pairs[0]
    names = ranks_name(sorted(common))
    own = ", ".join(f"{each.doubt.peer} by {each.rank}" for each in pairs)
    if len(common) == 1:
        cause = (
            f"{names} computes other numbers than its neighbours, of its own micro-batch and of"
            f" its neighbour's, in step {one.doubt.step + 1}"
        )
        reason = (
            f"batches computed again with another result: {own}; it alone is in each of these"
            " pairs. A device does that, or a program that treats this rank otherwise: only the"
            " same rank on another device tells"
        )
        return [_finding(one, tuple(common), cause, reason, "likely")]
    cause = f"one of {names} computes wrong numbers in step {one.doubt.step + 1}"
    reason = (
        f"batches computed again with another result: {own}; two ranks cannot outvote each other"
    )
    return [_finding(one, tuple(sorted(common)), cause, reason, "possible")]


def _ranks(told: Told) -> frozenset[int]:
    return frozenset({told.rank, told.doubt.peer})


def _single(told: Told) -> Finding:
    doubt, by = told.doubt, told.rank
    step = doubt.step + 1
    match doubt.again:
        case "first":
            return _finding(
                told, (by,),
                f"rank {by} computed a micro-batch of rank {doubt.peer} wrongly once (step {step})",
                "computed a second time it gave the numbers that its owner had", "likely",
            )  # fmt: skip
        case "second":
            how = "rank" if doubt.peer == by else "its neighbour, rank"
            return _finding(
                told, (doubt.peer,),
                f"rank {doubt.peer} computed wrong numbers in step {step}, first {doubt.subject}",
                f"{how} {by} computed its micro-batch twice again: both times the same"
                f" numbers, {doubt.differ} of {doubt.total} (gradients, outputs, what goes to other"
                " ranks) not those that its owner had; all other pairs agree", "likely",
            )  # fmt: skip
    ranks = tuple(sorted(_ranks(told)))
    return _finding(
        told, ranks if len(ranks) < 2 else (by,),
        f"rank {by} computes a micro-batch of rank {doubt.peer} otherwise each time (step {step})",
        "all other pairs agree, so the program's kernels are not the reason", "possible",
    )  # fmt: skip


def _everywhere(pairs: Sequence[Told]) -> Finding:
    one = pairs[0]
    ranks = tuple(sorted(frozenset.union(*[_ranks(each) for each in pairs])))
    return _finding(
        one, ranks,
        f"micro-batches give other numbers when they are computed again, {len(pairs)} of them in"
        f" step {one.doubt.step + 1}",
        "no single rank is in all of these pairs, and earlier rounds agreed: kernels that add in"
        " any order or a program that draws random numbers by itself, not a device", "likely",
        "nondeterminism",
    )  # fmt: skip


def _finding(
    told: Told,
    ranks: tuple[int, ...],
    cause: str,
    reason: str,
    confidence: Confidence,
    verdict: str = "silent_data_corruption",
) -> Finding:
    doubt = told.doubt
    shows = (
        f"replay {doubt.count}: batch of rank {doubt.peer} by rank {told.rank},"
        f" {doubt.differ} tensors differ; {doubt.looks} replays there so far"
    )
    return finding(verdict, told, ranks, cause, reason, confidence, shows)


def finding(
    verdict: str,
    told: Told,
    ranks: tuple[int, ...],
    cause: str,
    reason: str,
    confidence: Confidence,
    shows: str,
) -> Finding:
    """What is claimed because of one rank's doubt about numbers that no replica shows."""
    doubt = told.doubt
    source, seq = told.ref
    return Finding(
        verdict=verdict,
        ranks=ranks,
        cause=cause,
        reason=reason,
        confidence=confidence,
        onset_ns=doubt.at_ns,
        evidence=(EvidenceRef(source=source, seq=seq, shows=shows),),
        signature=Signature(
            verdict=verdict, what=MASKED, detail=f"{doubt.check} {doubt.step}", place=doubt.subject
        ).text(),
    )
