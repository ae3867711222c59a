"""What the controller does next: pure functions from the state and the time to decisions.

`plan` looks at what has happened and at the orders already given, never at what it said before,
so a controller that died in the middle of acting on a plan resumes it from the journal. Call it
until it returns nothing, folding all of a returned list before the next call.
"""

from harness.recovery.ending import Decision
from harness.recovery.planning import accept, next_wake_ns, plan
from harness.recovery.replaying import DECIDED, replay

__all__ = [
    "DECIDED",
    "Decision",
    "accept",
    "next_wake_ns",
    "plan",
    "replay",
]
