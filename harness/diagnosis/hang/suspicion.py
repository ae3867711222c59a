"""When the ranks of an attempt should be looked at."""

from harness.policy import Policy
from harness.state import AttemptState

_USUAL_FACTOR = 1.5
_START_SECONDS = 2.5
"""Before its first operation a rank imports and builds; a look costs more than it shows."""


_RHYTHM_FACTOR = 1.2
"""Pauses no longer than this many reports are apart show when reports come, not what ranks do."""
_CONFIRMED_SHARE = 0.9
"""Of the time without progress, that must have passed at its agent's newest report."""


def suspect_at_ns(attempt: AttemptState, policy: Policy) -> int | None:
    """The time from which on too little progress was seen; None while no rank is running, or
    reports come so seldom that the next one has to be waited for.

    Never earlier than `stall_floor`, nor than what is usual in this attempt.
    """
    if not attempt.stillest_ns:
        return None
    apart_ns = policy.reports_apart(len(attempt.nodes)) * 1e9
    seldom = 2 * apart_ns > policy.stall_floor * 1e9
    usual_ns = attempt.pace.usual_ns
    if seldom and usual_ns <= _RHYTHM_FACTOR * apart_ns:
        usual_ns = 0.0
    wait_ns = max(policy.stall_floor * 1e9, _USUAL_FACTOR * usual_ns)
    if not attempt.begun:
        wait_ns = max(wait_ns, _START_SECONDS * 1e9)
    at_ns = attempt.stillest_ns + int(wait_ns)
    if seldom and attempt.stillest_heard_ns < attempt.stillest_ns + _CONFIRMED_SHARE * wait_ns:
        return None  # it may have made progress since: its agent's next report tells
    return at_ns if attempt.stall is None else max(at_ns, attempt.stall.look.again_ns)
