"""loss_spike: the loss has gone up, far and to stay.

What did it is seldom known: a fault before the reduction, a batch, a learning rate. So no rank is
named for it, unless the gradients of one alone were out of the ordinary right before.
"""

from collections.abc import Sequence

from harness.diagnosis import replays
from harness.incidents import Finding
from harness.state import AttemptState
from harness.state.doubts import Told
from harness.topology import ranks_name

_SHORTLY = 8
"""Steps before the loss goes up in which an outlier has to do with it."""


def find(attempt: AttemptState, told: Sequence[Told]) -> list[Finding]:
    """Where most of the ranks that tell a loss say so: one alone has other data than the others."""
    found = [each for each in told if each.doubt.check == "loss"]
    telling = [r for r in attempt.ranks.values() if r.loss is not None or not r.loss_finite]
    ranks = {each.rank for each in found}
    if not found or 2 * len(ranks) <= len(telling):
        return []
    one = min(found, key=lambda each: (each.doubt.step, each.rank))
    doubt = one.doubt
    loud = _loud(attempt, doubt.step)
    reason = "every check of the ranks' own numbers was good, and so were the replicas"
    if loud:
        near = loud[0].doubt
        reason = (
            f"its own gradient of {near.subject} had {near.shows} (step {near.step + 1}), and no"
            " other rank's"
        )
    return [replays.finding(
        "loss_spike", one, tuple(sorted({each.rank for each in loud})),
        f"the loss went up and stays there: {doubt.shows}",
        f"{reason}; {ranks_name(sorted(ranks))} saw it, and the learning rate was not raised",
        "likely",
        f"loss told by rank {one.rank}, above {doubt.bound:.4g} since step {doubt.count}",
    )]  # fmt: skip


def _loud(attempt: AttemptState, step: int) -> list[Told]:
    """Outliers among the gradients shortly before, where they are of one rank only."""
    near = [each for each in attempt.doubts.of("norm") if 0 <= step - each.doubt.step <= _SHORTLY]
    return near if len({each.rank for each in near}) == 1 else []
