"""How far the clocks of nodes are apart, as far as records can tell.

Nodes of one host share a clock. Of others, every record is compared with the newest one of the
head node: the difference is the clocks', give or take what passes between two records.
"""

from collections import deque
from dataclasses import dataclass, field

HEAD_NODE = 0
SLACK_NS = 300_000_000
"""What an estimate may be wrong by: pulses come four times a second."""
_FEWEST = 9


@dataclass(slots=True)
class Clocks:
    """Times are wall-clock nanoseconds."""

    head_ns: int = 0
    """Newest stamp of the controller or the head node."""
    ahead: dict[int, deque[int]] = field(default_factory=dict)
    """By node: how much later than `head_ns` its newest records were stamped."""

    def note(self, source: str, node_rank: int | None, wall_ns: int) -> None:
        """A record has come."""
        if source == "controller" or node_rank == HEAD_NODE:
            self.head_ns = max(self.head_ns, wall_ns)
        elif node_rank is not None and self.head_ns:
            self.ahead.setdefault(node_rank, deque(maxlen=31)).append(wall_ns - self.head_ns)

    def offset_ns(self, node_rank: int) -> int | None:
        """What to take off the node's times to have the head's; None when it is not known yet.

        Less than the error of the estimate counts as nothing: nodes usually keep time.
        """
        if node_rank == HEAD_NODE:
            return 0
        seen = sorted(self.ahead.get(node_rank, ()))
        if len(seen) < _FEWEST:
            return None
        middle = seen[len(seen) // 2]
        return 0 if abs(middle) <= SLACK_NS else middle
