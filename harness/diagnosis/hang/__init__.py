"""Does a living attempt hang, and who began it? When to look, and what a look shows.

Suspicion comes from progress alone. A look is evidence of all ranks, taken twice in half a second
(of thousands, of few at first: `nodes_to_ask`). It becomes a verdict when the waits prove a
disagreement, or when a rank that all others wait for has done nothing for longer than its kind of
place may take. Everything else is a `StallLooked`.
"""

from harness.diagnosis.hang.firsts import nodes_to_ask
from harness.diagnosis.hang.look import judge_look
from harness.diagnosis.hang.suspicion import suspect_at_ns

__all__ = ["judge_look", "nodes_to_ask", "suspect_at_ns"]
