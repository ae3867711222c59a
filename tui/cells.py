"""The one state that each rank's cell shows, and its glyph. Pure."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from harness.incidents import Incident
from harness.state import AttemptState, RankState, RunState
from harness.tui.wording import clean

CellState = Literal[
    "not_started",
    "starting",
    "running",
    "checkpoint",
    "slow",
    "waiting",
    "stale",
    "hung",
    "mismatch",
    "dead",
    "corrupt",
    "oom",
    "restarting",
    "stopped",
    "done",
]
GLYPHS: Mapping[CellState, str] = {
    "not_started": "-",
    "starting": "i",
    "running": ".",
    "checkpoint": "c",
    "slow": "~",
    "waiting": "w",
    "stale": "?",
    "hung": "H",
    "mismatch": "M",
    "dead": "X",
    "corrupt": "S",
    "oom": "O",
    "restarting": "r",
    "stopped": "s",
    "done": "+",
}
MEANINGS: Mapping[CellState, str] = {
    "not_started": "not started yet",
    "starting": "starting, before its first step",
    "running": "running",
    "checkpoint": "saving or loading a checkpoint",
    "slow": "two or more steps behind the furthest rank",
    "waiting": "waits for the first-failing rank",
    "stale": "its heartbeat is late",
    "hung": "hung: never entered what the others wait in",
    "mismatch": "mismatch: another operation, size or order than its peers",
    "dead": "its process died or its script raised",
    "corrupt": "silent data corruption",
    "oom": "out of memory",
    "restarting": "stopped, waits for the next attempt",
    "stopped": "fell because of another rank, or was stopped by Harness",
    "done": "finished with exit code 0",
}
CULPRITS: frozenset[CellState] = frozenset({"hung", "mismatch", "dead", "corrupt", "oom"})
TROUBLED: frozenset[CellState] = CULPRITS | {"slow", "stale"}

_WORST_FIRST: tuple[CellState, ...] = (
    "corrupt", "mismatch", "hung", "oom", "dead", "slow", "stale", "stopped", "restarting",
    "waiting", "not_started", "starting", "checkpoint", "running", "done",
)  # fmt: skip
SEVERITY: Mapping[CellState, int] = {state: at for at, state in enumerate(_WORST_FIRST)}
"""Which of several states to show for ranks that share a place: the least."""

STALE_NS = 2_000_000_000
"""A rank whose heartbeat is this much older than the newest of its node counts as stale."""
SILENT_NS = 5_000_000_000
"""A node whose agent has said nothing for this long: all its ranks count as stale."""

_STATE_OF_FAMILY: Mapping[str, CellState] = {
    "desync": "mismatch",
    "stuck": "hung",
    "timeout": "hung",
    "crash": "dead",
    "checkpoint": "dead",
    "numeric": "corrupt",
    "slow": "slow",
    "leak": "slow",
}


def glyph_of(state: CellState, ascii_only: bool = False) -> str:
    """The one character of a state."""
    return "·" if state == "running" and not ascii_only else GLYPHS[state]


class Cell(NamedTuple):
    """One rank. A tuple, because one is made per rank and refresh: a frozen dataclass costs five
    times as much."""

    rank: int
    state: CellState
    step: int
    loss: float | None
    loss_finite: bool
    phase: str
    node_rank: int
    local_rank: int = -1


def cells_of(
    state: RunState, attempt: AttemptState, now_ns: int, *, over: bool = False
) -> tuple[Cell, ...]:
    """The cells of all ranks of `attempt`, in rank order. `over`: none of them lives, whatever was
    said last."""
    judge = _RankJudge(state, attempt, _incident_of(state, attempt), now_ns)
    judge.ended = judge.ended or over
    well, alive = not judge.blamed, judge.alive
    phases = {rank.phase for rank in attempt.ranks.values()}
    cleaned = {phase: clean(phase) for phase in phases}
    made = tuple.__new__  # half of what the class's own way costs, once per rank and refresh
    return tuple(
        [
            made(
                Cell,
                (
                    rank.rank,
                    # Nearly all, nearly always, are of the first kind.
                    alive(rank) if well and rank.status == "running" else judge.judge(rank),
                    rank.step,
                    rank.loss,
                    rank.loss_finite,
                    cleaned[rank.phase],
                    rank.node_rank,
                    rank.local_rank,
                ),
            )
            for rank in attempt.ranks.values()
        ]
    )


def _incident_of(state: RunState, attempt: AttemptState) -> Incident | None:
    """The newest incident of this attempt: its verdict colours the ranks."""
    found = [i for i in state.incidents if i.verdict.attempt == attempt.index]
    return found[-1] if found and found[-1].outcome != "recovered" else None


class _RankJudge:
    """Turns what is known of a rank into the one state its cell shows."""

    def __init__(
        self, state: RunState, attempt: AttemptState, incident: Incident | None, now_ns: int
    ) -> None:
        self.first_failing = frozenset(incident.verdict.first_failing) if incident else frozenset()
        self.victims = frozenset(incident.verdict.victims) if incident else frozenset()
        self.blamed = incident is not None
        self.culprit_state: CellState = "dead"
        if incident is not None:
            self.culprit_state = _STATE_OF_FAMILY.get(incident.verdict.family, "dead")
            if incident.verdict.verdict == "out_of_memory":
                self.culprit_state = "oom"
        self.ended = state.ended is not None
        self.furthest = attempt.step
        self.newest = dict.fromkeys(attempt.nodes, 0)
        for rank in attempt.ranks.values():
            if rank.heartbeat_ns > self.newest.get(rank.node_rank, 0):
                self.newest[rank.node_rank] = rank.heartbeat_ns
        self.silent = {
            node.node_rank
            for node in state.nodes.values()
            if not node.connected or (node.seen_ns and now_ns - node.seen_ns > SILENT_NS)
        }

    def judge(self, rank: RankState) -> CellState:
        if rank.rank in self.first_failing:
            return self.culprit_state
        if rank.status == "not_started":
            return "not_started"
        if rank.status == "stopped":
            return "stopped" if self.ended else "restarting"
        if rank.exited is not None and rank.exited.exit_code == 0:
            return "done"
        if rank.rank in self.victims:
            return "waiting" if rank.status == "running" and not self.ended else "stopped"
        if rank.status in ("exited", "raised"):
            return "oom" if rank.exited is not None and rank.exited.oom else "dead"
        return self.alive(rank)

    def alive(self, rank: RankState) -> CellState:
        if self.ended:
            return "stopped"
        beat = rank.heartbeat_ns
        late = beat and self.newest[rank.node_rank] - beat > STALE_NS
        if late or rank.node_rank in self.silent:
            return "stale"
        if rank.phase == "checkpoint":
            return "checkpoint"
        if rank.phase == "init" and rank.step == 0:
            return "starting"
        return "slow" if rank.step + 2 <= self.furthest else "running"
