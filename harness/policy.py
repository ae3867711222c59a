"""Budgets, timeouts and limits of a run, with their defaults. The one place for such numbers."""

from dataclasses import dataclass

REPORTS_PER_SECOND = 2000.0
"""Of all agents of a run, that one controller takes in with half a core; more nodes report less
often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the controller may spend and how long it waits. All times in seconds."""

    max_restarts: int = 3
    """Restarts allowed within `restart_window`."""
    restart_window: float = 3600.0
    same_failure_limit: int = 2
    """The same failure signature at the same step this many times in a row stops the run."""
    evidence_budget: float = 5.0
    """Longest wait for evidence before a verdict is given without the missing part."""
    settle: float = 0.5
    """Longest wait, after the first sign of a crash that does not explain itself, for other ranks
    to say more."""
    stop_limit: float = 30.0
    """Longest wait beyond `stop_grace` for a node to say that its workers are gone."""
    stop_grace: float = 2.0
    """From SIGTERM to SIGKILL when workers are stopped."""
    preempt_grace: float = 30.0
    """From the wish to preempt a run until its workers are stopped, saved or not."""
    rendezvous_timeout: float = 600.0
    """Longest wait for all nodes to join."""
    last_call: float = 30.0
    """How long a run with at least its least number of nodes waits for more before it begins."""
    quarantine: int = 2
    """A host with this many strikes within `strike_window` is left out where others can take its
    place; 0: never."""
    strike_window: float = 86400.0
    controller_timeout: float = 60.0
    """An agent that hears nothing from the controller for this long stops its workers."""
    agent_timeout: float = 5.0
    """A node whose agent is silent or disconnected for this long counts as lost."""
    pulse_interval: float = 0.25
    """How often an agent reads its workers' pulse pages and reports what changed; in runs of more
    than some hundred nodes less often, see `reports_apart`."""
    stall_floor: float = 1.0
    """Least time without progress after which ranks are looked at."""
    looks_apart: float = 0.4
    """Between the two looks at a rank's progress."""
    stuck_patience: float = 3.5
    """A rank that all others wait for may do something else for this long once steps are made."""
    work_patience: float = 25.0
    """The same where its stack shows work that takes its time: saving, evaluating, compiling."""
    start_patience: float = 20.0
    """The same before the first steps, when it shows no sign of work at all."""
    teardown_patience: float = 8.0
    """How long a rank may take to end, without a sign of work, after all others are done."""
    digests: int = 1
    """Least steps between two digests of what ranks should have in common; each rank takes them
    more seldom where they would cost it more than `digest_share` of its time. 0: none."""
    digest_share: float = 0.004
    audit_share: float = 0.001
    """Of a rank's time, that each kind of check of its own numbers may take: gradients before they
    are reduced, recomputed activations, micro-batches computed again. 0: none is made."""
    replays: int = 0
    """Least steps between two micro-batches that a neighbour computes again; 0: none are. It runs
    the user's own forward once more, so it has to be asked for."""
    checkpoint_interval: float | None = None
    """Between two saves, told to the workers; 0: the script decides, None: what the ledger
    recommends when an attempt begins."""

    def reports_apart(self, nodes: int) -> float:
        """Seconds between two reports of an agent's pulses in a run of so many nodes."""
        return max(self.pulse_interval, nodes / REPORTS_PER_SECOND)
