"""Findings, verdicts, incidents, and the catalogue of verdict classes (DESIGN section 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["proven", "likely", "possible"]
Action = Literal["restart", "rollback", "stop", "report", "none"]
Outcome = Literal["open", "recovered", "stopped", "failed"]

CATALOGUE: Mapping[str, tuple[str, ...]] = {
    "desync": ("collective_mismatch", "shape_mismatch", "group_mismatch", "p2p_deadlock"),
    "stuck": (
        "rank_stuck_outside_collective",
        "rank_stuck_in_io",
        "rank_frozen",
        "dataloader_stuck",
        "stuck_before_first_collective",
        "teardown_hang",
        "network_stall",
    ),
    "timeout": ("timeout_waiting_for_slow_rank",),
    "crash": (
        "exception",
        "exception_hidden_by_cleanup",
        "killed_by_signal",
        "out_of_memory",
        "device_fault",
        "rank_exited_early",
        "dataloader_worker_died",
        "port_in_use",
        "deterministic_failure",
        "node_lost",
        "teardown_abort",
    ),
    "checkpoint": (
        "checkpoint_corrupt",
        "checkpoint_incomplete",
        "checkpoint_step_mismatch",
        "checkpoint_save_failed",
    ),
    "numeric": (
        "silent_data_corruption",
        "replica_divergence",
        "tp_replicated_param_divergence",
        "buffers_differ",
        "nonfinite",
        "nondeterminism",
        "loss_spike",
        "unexpected_replication",
    ),
    "slow": ("straggler", "unsynchronised_pauses"),
    "leak": ("resource_leak_fd", "resource_leak_memory"),
}
FAMILY_OF: Mapping[str, str] = {
    verdict: family for family, verdicts in CATALOGUE.items() for verdict in verdicts
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A line of the user's code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRef:
    """The collective that an incident is about."""

    pg: str
    pg_desc: str
    op: str
    seq_id: int
    sizes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRef:
    """Points at what backs a claim: an event of `source` with its `seq`, and what it shows.

    `file`, when set, is relative to the run directory.
    """

    source: str
    seq: int
    shows: str
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One detector's claim. `onset_ns` is wall-clock nanoseconds of the earliest sign."""

    verdict: str
    ranks: tuple[int, ...]
    cause: str
    reason: str
    confidence: Confidence
    onset_ns: int
    evidence: tuple[EvidenceRef, ...] = ()
    where: Where | None = None
    collective: CollectiveRef | None = None
    signature: str = ""
    """What makes two failures the same one: class, ranks-independent cause, place."""
    victims: tuple[int, ...] = ()
    """Ranks that wait for `ranks`, where the detector knows them."""
    wait_share: float = 0.0
    """Share of their time that the victims of a run that goes on wait; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What we say: who failed first, of what, and why we believe it."""

    verdict: str
    first_failing: tuple[int, ...]
    victims: tuple[int, ...]
    innocent: tuple[int, ...]
    cause: str
    reason: str
    confidence: Confidence
    onset_ns: int
    attempt: int
    step: int
    signature: str
    coordinates: Mapping[str, int] = field(default_factory=dict)
    node: str = ""
    where: Where | None = None
    collective: CollectiveRef | None = None
    evidence: tuple[EvidenceRef, ...] = ()
    wait_share: float = 0.0
    """As in the finding."""

    @property
    def family(self) -> str:
        return FAMILY_OF[self.verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSettled:
    """Which of the ranks that a verdict named it was, as known since."""

    incident_id: int
    ranks: tuple[int, ...]
    cause: str
    reason: str
    confidence: Confidence = "proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Verdict, what is done about it, and how it ended. Times are wall-clock nanoseconds."""

    id: int
    verdict: Verdict
    action: Action
    action_reason: str
    detected_ns: int
    outcome: Outcome = "open"
    lost_steps: int | None = None
    """Steps done again because of this incident; known once the next attempt has resumed."""
    exit_code: int = 1
    """Exit code of the run when `action` is to stop it."""
