"""What ranks find wrong with their own numbers: silent_data_corruption, nondeterminism, nonfinite,
loss_spike.

Replicas cannot show it, as a reduction mixes it into all of them. A rank that is alone with a fault
is named; what several ranks find at the same thing is what a program does.
"""

from collections.abc import Sequence

from harness.diagnosis import loss_spike, replays
from harness.incidents import Confidence, Finding
from harness.state import AttemptState
from harness.state.doubts import Told
from harness.topology import ranks_name

_PATIENCE_NS = 1_500_000_000
"""Others may have found the same, and say so a moment later."""
_LONGEST_NS = 10_000_000_000
"""A check that was to be made again."""
_EACH_TIME = 3
_FEW_SHARE = 0.1


def find(attempt: AttemptState) -> list[Finding]:
    """The first fault that explains the others."""
    if not attempt.doubts.by_rank:
        return []
    told = attempt.doubts.of("gradient", "recompute", "replay", "at rest", "update", "loss")
    if not all(_ready(attempt, each) for each in told):
        return []
    gradients = [each for each in told if each.doubt.check == "gradient"]
    ruined = min((each.doubt.step for each in gradients), default=None)
    # NaN is equal to nothing: where it has come to, no other comparison says anything.
    sound = [each for each in told if ruined is None or each.doubt.step < ruined]
    found = [
        *_at_rest(sound),
        *_updated(sound),
        *_recomputed(sound),
        *replays.find(attempt, [each for each in sound if each.doubt.check == "replay"]),
        *_not_finite(attempt, [each for each in told if each.doubt.settled]),
        *loss_spike.find(attempt, told),
    ]
    return sorted(found, key=lambda finding: finding.onset_ns)[:1]


def not_finite(attempt: AttemptState) -> list[Finding]:
    """Of a run that ends of it: what was about to go into an update counts as well."""
    told = attempt.doubts.of("gradient")
    last = [each for each in told if each.doubt.step >= attempt.step - 1]
    return _not_finite(attempt, last)


def _ready(attempt: AttemptState, told: Told) -> bool:
    if len(attempt.gone) == attempt.world_size:
        return True
    waited = attempt.surveyed_ns - told.doubt.at_ns
    return waited > (_PATIENCE_NS if told.doubt.settled else _LONGEST_NS)


def _at_rest(told: Sequence[Told]) -> list[Finding]:
    """Shards that nobody has a copy of. What changes on several ranks, or in many tensors, the
    program has changed."""
    found = [each for each in told if each.doubt.check == "at rest"]
    findings = []
    for one in found:
        doubt = one.doubt
        others = {each.rank for each in found if each.doubt.step == doubt.step}
        few = doubt.differ <= max(1, int(_FEW_SHARE * doubt.total))
        if len(others) > 1 or not few:
            continue
        what = f"{doubt.subject}: {', '.join(doubt.tensors)}"
        cause = (
            f"rank {one.rank} holds other bits in its own {what} than it had left there at the"
            f" end of step {doubt.step}"
        )
        reason = (
            "nothing of the program writes there between two steps on any other rank; memory"
            " changed by itself"
        )
        findings.append(_finding("silent_data_corruption", one, (one.rank,), cause, reason))
    return findings


def _updated(told: Sequence[Told]) -> list[Finding]:
    """Updates that came out otherwise when they were computed again from the same numbers."""
    found = [each for each in told if each.doubt.check == "update"]
    if not found:
        return []
    ranks = tuple(sorted({each.rank for each in found}))
    one = found[0]
    doubt = one.doubt
    if len(ranks) > 1:
        return [_finding(
            "nondeterminism", one, ranks,
            f"the optimizer's update of {doubt.subject} gives other bits when it is computed again"
            f" ({doubt.failed} of {doubt.looks} times on rank {one.rank})",
            f"it happens on {ranks_name(ranks)}: the program, or its libraries, do that, not a"
            " device", "likely",
        )]  # fmt: skip
    steady = (
        "computed twice more it came out so both times"
        if doubt.again == "second"
        else "computed twice more it came out otherwise each time"
    )
    return [_finding(
        "silent_data_corruption", one, ranks,
        f"rank {one.rank} updated {doubt.subject} wrongly in step {doubt.step + 1}:"
        f" {doubt.shows}",
        f"from the same parameter, gradient and state; {steady}; {doubt.differ} of"
        f" {doubt.total} elements that were looked at are wrong, in {doubt.failed} of"
        f" {doubt.looks} looks, none on another rank", "likely",
    )]  # fmt: skip


def _recomputed(told: Sequence[Told]) -> list[Finding]:
    newest = {
        (each.rank, each.doubt.subject): each for each in told if each.doubt.check == "recompute"
    }
    if not newest:
        return []
    ranks = tuple(sorted({each.rank for each in newest.values()}))
    one = min(newest.values(), key=lambda each: (each.doubt.step, each.doubt.at_ns))
    doubt = one.doubt
    always = doubt.looks >= _EACH_TIME and doubt.failed == doubt.looks
    if len(ranks) > 1 or always:
        often = f"{doubt.failed} of {doubt.looks} times on {ranks_name(ranks[:1])}"
        why = f"it happens on {ranks_name(ranks)}" if len(ranks) > 1 else "it happens every time"
        return [_finding(
            "nondeterminism", one, ranks,
            f"block {doubt.subject} gives other outputs when its activations are recomputed"
            f" ({often})",
            f"{why}: a program does that, with random numbers that are not restored or kernels"
            " that add in any order, not a device; the gradients are those of the second outputs",
            "likely",
        )]  # fmt: skip
    third = {
        "first": "a third computation gave the outputs of the forward pass again, so the"
        " recomputation was wrong",
        "second": "a third computation gave the recomputed outputs again, so the forward pass"
        " was wrong",
        "neither": "a third computation gave other outputs once more",
    }.get(doubt.again, "which of the two was wrong is not known")
    return [_finding(
        "silent_data_corruption", one, ranks,
        f"rank {one.rank} computed block {doubt.subject} wrongly in step {doubt.step + 1}: its"
        " outputs are not the same bits in the forward pass and in the recomputation",
        f"{third}; {doubt.failed} of {doubt.looks} looks at this block came out so, and none on"
        " another rank",
        "likely" if doubt.again in ("first", "second") else "possible",
    )]  # fmt: skip


def _not_finite(attempt: AttemptState, told: Sequence[Told]) -> list[Finding]:
    found = [each for each in told if each.doubt.check == "gradient"]
    if not found:
        return []
    turn = min(each.doubt.count for each in found)
    those = [each for each in found if each.doubt.count == turn]
    ranks = tuple(sorted({each.rank for each in those}))
    one = min(those, key=lambda each: each.doubt.at_ns)
    doubt = one.doubt
    first = doubt.step
    others = [rank for rank in range(attempt.world_size) if rank not in ranks]
    names = f"{doubt.subject}" + (f" and {doubt.differ - 1} more" if doubt.differ > 1 else "")
    if others:
        cause = (
            f"{ranks_name(ranks)}: its own gradient of {names} was not finite in step {first + 1},"
            " before it was reduced"
        )
        reason = (
            f"no gradient that {ranks_name(others)} looked at was, before the reduction gave it to"
            " all; its data, or its device, came to it first"
        )
    else:
        cause = f"the gradients of all ranks were not finite in step {first + 1} ({names} first)"
        reason = "already before they were reduced, on each of them: the program comes to it"
    return [_finding("nonfinite", one, ranks, cause, reason + _outliers(attempt, ranks, first))]


def _outliers(attempt: AttemptState, ranks: Sequence[int], step: int) -> str:
    """What the norms of these ranks' gradients showed shortly before, and no others'."""
    near = [each for each in attempt.doubts.of("norm") if 0 <= step - each.doubt.step <= 2]
    loud = {each.rank for each in near}
    if not loud or not loud <= set(ranks):
        return ""
    one = near[0]
    return (
        f"; its gradient of {one.doubt.subject} had {one.doubt.shows} (step {one.doubt.step + 1})"
    )


def _finding(
    verdict: str,
    told: Told,
    ranks: tuple[int, ...],
    cause: str,
    reason: str,
    confidence: Confidence = "proven",
) -> Finding:
    doubt = told.doubt
    shows = f"check {doubt.check} of {doubt.subject}, look {doubt.looks}: {doubt.failed} bad"
    return replays.finding(verdict, told, ranks, cause, reason, confidence, shows)
