"""When the ranks of an attempt should be looked at."""

from harness.policy import Policy
from harness.state import AttemptState

_USUAL_FACTOR = 1.5
_START_SECONDS = 2.5
"""Before its first operation a rank imports and builds; a look costs more than it shows."""


def suspect_at_ns(attempt: AttemptState, policy: Policy) -> int | None:
    """The time from which on too little progress was seen; None while no rank is running.

    Never earlier than `stall_floor`, nor than what is usual in this attempt.
    """
    if not attempt.stillest_ns:
        return None
    wait_ns = max(policy.stall_floor * 1e9, _USUAL_FACTOR * attempt.pace.usual_ns)
    if not attempt.begun:
        wait_ns = max(wait_ns, _START_SECONDS * 1e9)
    at_ns = attempt.stillest_ns + int(wait_ns)
    return at_ns if attempt.stall is None else max(at_ns, attempt.stall.look.again_ns)
