"""What a fault is: harm caused on purpose, with its address and its moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ANY = -1
"""As rank or node: none in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Harm of `kind` on one rank, or on a node where `rank` is ANY.

    It is due when everything that is set has come: so many steps of the rank are complete (`step`),
    it has begun so many collectives (`seq_id`, over all groups), it is in `phase`, so many seconds
    have gone since it was asked for, and its attempt is `attempt`. Nothing set: at once.
    """

    kind: str
    rank: int = ANY
    step: int | None = None
    seq_id: int | None = None
    phase: str = ""
    seconds: float | None = None
    attempt: int | None = None
    node: int = ANY
    times: int = 1
    """How often, once an attempt at most."""
    seed: int = 0
    """Of all that the kind draws."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The kind's own, as text; those left out have the kind's defaults."""


def whom(fault: Fault) -> str:
    """`rank 5`, `node 1`."""
    return f"rank {fault.rank}" if fault.rank != ANY else f"node {max(fault.node, 0)}"


def when(fault: Fault) -> str:
    """`after step 20 in phase checkpoint`; `now`."""
    parts = []
    if fault.step is not None:
        parts.append(f"after step {fault.step}")
    if fault.seq_id is not None:
        parts.append(f"at collective {fault.seq_id}")
    if fault.phase:
        parts.append(f"in phase {fault.phase}")
    if fault.seconds is not None:
        parts.append(f"after {fault.seconds:g} s")
    if fault.attempt is not None:
        parts.append(f"of attempt {fault.attempt}")
    return " ".join(parts) or "now"
