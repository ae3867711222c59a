"""Events about the nodes of a run: who is waited for, when others take part, and
which hosts failed."""

from dataclasses import dataclass

CORRUPTION = "silent_data_corruption"
_CORRUPTION_SECONDS = 90 * 86400.0
"""A device that computes wrongly now and then may do so weeks apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAwaited:
    """Attempt `attempt` is over and too few nodes are here to go on; others may still join."""

    attempt: int
    here: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """The workers of `attempt` are stopped on purpose: to go on with other nodes, or because
    somebody asked for it."""

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
    local_ranks: tuple[int, ...] = ()
    """Places on the host, and so its devices, that the cause lay in."""

    def counts(self, now_ns: int, window: float) -> bool:
        """Whether it is remembered: for `window` seconds, that of a corruption for 90 days."""
        seconds = max(window, _CORRUPTION_SECONDS) if self.why == CORRUPTION else window
        return self.at_ns >= now_ns - int(seconds * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStruck:
    """The cause of an incident lay in a node: its host gets a strike."""

    host: str
    node_rank: int
    incident: int
    why: str
    local_ranks: tuple[int, ...] = ()
