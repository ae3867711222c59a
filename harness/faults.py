"""What a fault is: harm caused on purpose, addressed by rank and step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of `kind` on one rank, due at once or when the rank has completed `step` steps."""

    kind: str
    rank: int
    step: int | None = None
