"""Events about the nodes of a run: who is waited for, when others take part, and
which hosts failed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What a host did to an earlier run. `at_ns` is wall-clock nanoseconds."""

    host: str
    run: str
    incident: int
    why: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStruck:
    """The cause of an incident lay in a node: its host gets a strike."""

    host: str
    node_rank: int
    incident: int
    why: str
