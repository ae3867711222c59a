"""What a checkpoint is to the controller: a step, a place, and who has written or read it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """One checkpoint as the ranks report it. It is a restore point once every rank has saved it."""

    step: int
    path: str
    saved_by: frozenset[int]
    seconds: float
    """Longest time any rank spent in the save."""
    attempt: int = 0
    """The attempt that saved it last."""
    whole_ns: int = 0
    """When the last rank had saved it, by the clock; 0: not all have."""
