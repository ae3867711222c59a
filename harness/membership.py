"""Events about the nodes of a run: who is waited for, and when others take part."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAwaited:
    """Attempt `attempt` is over and too few nodes are here to go on; others may still join."""

    attempt: int
    here: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """The workers of `attempt` are stopped on purpose, to go on with other nodes."""

    attempt: int
    why: str
