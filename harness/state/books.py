"""What is kept to tell where the time of ranks went: sums per rank, moments per attempt.

A few numbers for each rank, whatever the length of the run. `harness.state.booking` keeps them,
`harness.goodput` makes the ledger of them.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Books:
    """One rank in one attempt. Nanoseconds; what is not told apart yet lies after `until_ns`."""

    until_ns: int = 0
    """All before it is booked (wall clock)."""
    signed: bool = False
    """It has given a sign of life."""
    at_work: bool = False
    """It has made a step, or has said that it is about to."""
    over: bool = False
    """It has said that its work is done."""
    steps: int = 0
    """Steps it was seen to make once it was at work."""
    first: int = 0
    """Steps in the first news of any, as long as nothing is known of the next ones."""
    first_most_ns: int = 0
    """What they can have taken at most without the first of them."""
    waits_ns: int = 0
    """Since when it has stood still in a suspected stall; 0: it does not."""
    saving_ns: int = 0
    """Of `checkpoint`, what no finished save has accounted for yet."""
    late: float = 0.0
    """Share of its time in which it is known to wait for a straggler."""
    start: int = 0
    init: int = 0
    load: int = 0
    operations: int = 0
    """Operations advanced, but no step was made yet: useful where no steps are counted at all."""
    useful: int = 0
    recompute: int = 0
    checkpoint: int = 0
    stall: int = 0
    straggler: int = 0
    stop: int = 0


@dataclass(slots=True)
class Moments:
    """Moments of one attempt (wall clock, ns; 0: not yet) and sums over its ranks."""

    furthest: int = 0
    """Step that earlier attempts had come to; 0 where steps of attempts cannot be compared."""
    signed_ns: int = 0
    """When the last rank gave its first sign."""
    begun_ns: int = 0
    """When the first rank went to work."""
    recomputed_ns: int = 0
    """When the first rank had caught up with `furthest`."""
    new_step_ns: int = 0
    """When the first rank had made a step that no attempt before had made."""
    load_ns: int = 0
    """The longest load that a rank has told of."""
    useful_ns: int = 0
    """Sum of `useful` over the ranks."""
