"""What the screens show, computed from a run's state: pure, frozen, without a terminal.

`build` takes the state and `now`; the same state and the same `now` give the same view, whether
the records came from a live controller, from a journal being written, or from an old run. The
plain `harness status` shows the same view.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from harness.events import WorkerExited
from harness.incidents import Incident, Where
from harness.state import AttemptState, RankState, RunState
from harness.topology import coordinates_text, ranks_text

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
Tone = Literal["ok", "warn", "bad"]

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
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The figures of the run as a whole. Times in seconds; None: not known yet."""

    run: str
    stage: str
    world_size: int
    mesh: str
    attempt: int | None
    step: int
    total_steps: int
    loss: float | None
    elapsed: float
    quiet: float
    """Time since the last record while ranks run, which say something several times a second."""
    checkpoint_step: int | None
    """Step of the newest checkpoint that all ranks have saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """Two lines that say how the run is; with trouble, who began it and what comes next."""

    tone: Tone
    lines: tuple[str, str]
    rank: int | None = None
    """The rank it names as the one where trouble began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """One incident. `detected_ns` is wall clock."""

    id: int
    detected_ns: int
    verdict: str
    who: str
    ranks: tuple[int, ...]
    cause: str
    reason: str
    where: str
    """`file:line in function`, empty when unknown."""
    victims: tuple[int, ...]
    confidence: str
    attempt: int
    step: int
    action: str
    action_reason: str
    outcome: str
    lost_steps: int | None

    @property
    def fate(self) -> str:
        """What was done and how it went."""
        lost = "" if self.lost_steps is None else f", {_plural(self.lost_steps, 'step')} lost"
        texts = {
            "open": f"{self.action} under way",
            "recovered": f"recovered by {self.action}",
            "stopped": "the run was stopped",
            "failed": f"{self.action} failed",
        }
        return texts.get(self.outcome, self.outcome) + lost


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that one refresh of a screen needs."""

    header: Header
    banner: Banner
    cells: tuple[Cell, ...]
    axes: tuple[tuple[str, int], ...]
    """Name and size of the mesh axes, row-major; empty when no mesh is known."""
    coordinates: Mapping[int, Mapping[str, int]]
    """By rank, as far as they are known."""
    incidents: tuple[IncidentRow, ...]
    culprit: int | None
    """The rank that the banner names; None when it names none."""

    def place(self, cell: Cell) -> str:
        """Coordinates as text, such as `dp1 pp0 tp1`; empty when they are not known."""
        return place_text(self.axes, self.coordinates.get(cell.rank, {}))

    def next_troubled(self, rank: int, step: int) -> int | None:
        """The next (`step` 1) or previous (-1) troubled rank after `rank`, culprits before the
        slow and the stale; None when all is well."""
        culprits = [cell.rank for cell in self.cells if cell.state in CULPRITS]
        ranks = culprits or [cell.rank for cell in self.cells if cell.state in TROUBLED]
        if not ranks:
            return None
        if step > 0:
            return next((r for r in ranks if r > rank), ranks[0])
        return next((r for r in reversed(ranks) if r < rank), ranks[-1])


def clean(text: str) -> str:
    """`text` on one line, safe to draw: no escape sequences, no control characters."""
    text = _ESCAPE.sub("", text).replace("\t", "    ").replace("\r", "").replace("\n", " ")
    return _CONTROL.sub("\ufffd", text)


def short_path(path: str) -> str:
    """The last two parts of an absolute path, for lines with little room."""
    parts = clean(path).split("/")
    return "/".join(parts[-2:]) if path.startswith("/") and len(parts) > 3 else clean(path)


def duration_text(seconds: float) -> str:
    """`2471.3` as `00:41:11`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def loss_text(loss: float | None, finite: bool = True) -> str:
    if not finite:
        return "not finite"
    return "" if loss is None else f"{loss:.4g}"


def exit_text(exited: WorkerExited) -> str:
    """How a worker left, as the end of a sentence about it."""
    if exited.oom:
        return f"ran out of memory ({exited.oom})"
    if exited.signal is not None:
        return f"was killed by signal {exited.signal}"
    return f"exited with code {exited.exit_code}"


def place_text(axes: Sequence[tuple[str, int]], coordinates: Mapping[str, int]) -> str:
    """Coordinates as text, without the axes of size 1: they tell nothing apart."""
    flat = {name for name, size in axes if size == 1}
    return coordinates_text({n: value for n, value in coordinates.items() if n not in flat})


def rank_name(state: RunState, rank: int) -> str:
    """`rank 5 (dp1 pp0 tp1, host-a)`: what is known of the place of a rank."""
    parts = [place_text(_axes(state), state.coordinates.get(rank, {}))]
    attempt = state.attempt
    known = attempt.ranks.get(rank) if attempt is not None else None
    node = state.nodes.get(known.node_rank) if known is not None else None
    if node is not None and len(state.nodes) > 1:
        parts.append(f"node {node.node_rank} {node.host}")
    inside = ", ".join(part for part in parts if part)
    return f"rank {rank} ({inside})" if inside else f"rank {rank}"


def build(state: RunState, now_ns: int) -> View:
    """The view of `state` at `now_ns` (wall clock, nanoseconds)."""
    if state.ended_ns:
        now_ns = state.ended_ns
    attempt = state.attempt
    cells: tuple[Cell, ...] = ()
    if attempt is not None:
        incident = _incident_of(state, attempt)
        judge = _RankJudge(state, attempt, incident, now_ns)
        cells = tuple(
            Cell(
                rank.rank,
                judge.judge(rank),
                rank.step,
                rank.loss,
                rank.loss_finite,
                _phase(rank.phase),
                rank.node_rank,
            )
            for rank in attempt.ranks.values()
        )
    banner = _banner(state, cells, now_ns)
    return View(
        header=_header(state, now_ns),
        banner=banner,
        cells=cells,
        axes=_axes(state),
        coordinates=dict(state.coordinates),
        incidents=tuple(_incident_row(state, incident) for incident in state.incidents),
        culprit=banner.rank,
    )


def _axes(state: RunState) -> tuple[tuple[str, int], ...]:
    mesh = state.mesh
    return () if mesh is None else tuple(zip(mesh.names, mesh.sizes, strict=True))


@lru_cache(maxsize=64)
def _phase(phase: str) -> str:
    """Cleaned; there are few phases and many ranks."""
    return clean(phase)


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
        self.culprit_state: CellState = "dead"
        if incident is not None:
            self.culprit_state = _STATE_OF_FAMILY.get(incident.verdict.family, "dead")
            if incident.verdict.verdict == "out_of_memory":
                self.culprit_state = "oom"
        self.ended = state.ended is not None
        self.furthest = attempt.step
        self.newest: dict[int, int] = {}
        for rank in attempt.ranks.values():
            newest = self.newest.get(rank.node_rank, 0)
            self.newest[rank.node_rank] = max(newest, rank.heartbeat_ns)
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
        return self._alive(rank)

    def _alive(self, rank: RankState) -> CellState:
        if self.ended:
            return "stopped"
        late = self.newest[rank.node_rank] - rank.heartbeat_ns > STALE_NS and rank.heartbeat_ns > 0
        if late or rank.node_rank in self.silent:
            return "stale"
        if rank.phase == "checkpoint":
            return "checkpoint"
        if rank.phase == "init" and rank.step == 0:
            return "starting"
        return "slow" if rank.step + 2 <= self.furthest else "running"


def _header(state: RunState, now_ns: int) -> Header:
    attempt = state.attempt
    mark = state.newest_restore_point
    ranks = list(attempt.ranks.values()) if attempt is not None else []
    world = attempt.world_size if attempt else sum(n.local_world_size for n in state.nodes.values())
    return Header(
        run=state.run.run if state.run is not None else "",
        stage=state.ended.outcome if state.ended is not None else state.stage,
        world_size=world,
        mesh=" ".join(f"{name}{size}" for name, size in _axes(state) if size > 1),
        attempt=attempt.index if attempt is not None else None,
        step=attempt.step if attempt is not None else 0,
        total_steps=max((rank.total_steps for rank in ranks), default=0),
        loss=run_loss(state),
        elapsed=max(0, now_ns - state.started_ns) / 1e9 if state.started_ns else 0.0,
        quiet=max(0, now_ns - state.last_ns) / 1e9 if state.stage == "running" else 0.0,
        checkpoint_step=mark.step if mark is not None else None,
    )


def run_loss(state: RunState) -> float | None:
    """The loss of the lowest rank among the furthest that report one: a number some rank has
    said, never a mean over ranks that mean different things by it."""
    attempt = state.attempt
    if attempt is None:
        return None
    said = [rank for rank in attempt.ranks.values() if rank.loss is not None]
    return min(said, key=lambda rank: (-rank.step, rank.rank)).loss if said else None


def _incident_row(state: RunState, incident: Incident) -> IncidentRow:
    verdict = incident.verdict
    return IncidentRow(
        id=incident.id,
        detected_ns=incident.detected_ns,
        verdict=verdict.verdict,
        who=_who(state, verdict.first_failing, verdict.coordinates),
        ranks=verdict.first_failing,
        cause=clean(verdict.cause),
        reason=clean(verdict.reason),
        where=_where_text(verdict.where),
        victims=verdict.victims,
        confidence=verdict.confidence,
        attempt=verdict.attempt,
        step=verdict.step,
        action=incident.action,
        action_reason=clean(incident.action_reason),
        outcome=incident.outcome,
        lost_steps=incident.lost_steps,
    )


def _where_text(where: Where | None) -> str:
    if where is None:
        return ""
    return f"{short_path(where.file)}:{where.line} in {clean(where.function)}"


def _who(state: RunState, ranks: Sequence[int], coordinates: Mapping[str, int]) -> str:
    if not ranks:
        return "no single rank"
    if len(ranks) > 1:
        return f"ranks {ranks_text(ranks)}"
    if coordinates and ranks[0] not in state.coordinates:
        return f"rank {ranks[0]} ({place_text(_axes(state), coordinates)})"
    return rank_name(state, ranks[0])


def _banner(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner:
    """Ended, then trouble, then starting, then well: the first that holds speaks."""
    if state.ended is not None:
        return _banner_ended(state)
    open_incidents = [i for i in state.incidents if i.outcome == "open"]
    if open_incidents:
        return _banner_incident(state, open_incidents[-1])
    trouble = _first_trouble(state)
    if trouble is not None:
        return trouble
    lost = [node for node in state.nodes.values() if not node.connected]
    if lost:
        nodes = ", ".join(f"node {n.node_rank} {n.host} ({clean(n.lost_why)})" for n in lost)
        return Banner(tone="bad", lines=(f"LOST  {nodes}", _last_incident(state)))
    starting = _banner_starting(state, cells, now_ns)
    return starting if starting is not None else _banner_running(state, cells, now_ns)


def _banner_ended(state: RunState) -> Banner:
    ended = state.ended
    assert ended is not None
    steps = state.attempt.step if state.attempt is not None else 0
    took = duration_text((state.ended_ns - state.started_ns) / 1e9)
    restarts = max(0, len(state.attempts) - 1)
    figures = f"{steps} steps in {took}, {_plural(restarts, 'restart')}"
    tones: Mapping[str, Tone] = {"succeeded": "ok", "stopped": "warn"}
    tone: Tone = tones.get(ended.outcome, "bad")
    if tone == "bad" and state.incidents:
        incident = _banner_incident(state, state.incidents[-1])
        second = f"FAILED  exit code {ended.exit_code}: {clean(ended.reason)}; {figures}"
        return Banner(tone="bad", lines=(incident.lines[0], second), rank=incident.rank)
    reason = f": {clean(ended.reason)}" if ended.reason else ""
    first = f"{ended.outcome.upper()}  exit code {ended.exit_code}{reason}"
    last = _last_incident(state)
    return Banner(tone=tone, lines=(first, figures + (f"; {last}" if last else "")))


def _banner_incident(state: RunState, incident: Incident) -> Banner:
    verdict = incident.verdict
    who = _who(state, verdict.first_failing, verdict.coordinates)
    first = f"{verdict.verdict.upper()}  {who}: {clean(verdict.cause)}"
    parts = []
    if verdict.where is not None:
        parts.append(f"at {_where_text(verdict.where)}")
    if verdict.victims:
        parts.append(f"{_plural(len(verdict.victims), 'rank')} fell with it")
    parts.append(f"next: {incident.action} ({clean(incident.action_reason)})")
    rank = verdict.first_failing[0] if verdict.first_failing else None
    return Banner(tone="bad", lines=(first, "; ".join(parts)), rank=rank)


def _first_trouble(state: RunState) -> Banner | None:
    """Before the verdict: what was seen, and no more. Ranks that died without an exception come
    first: an exception may be a peer's cry that its connection is gone. One of several ranks is
    named as the beginning only when it is the only one that went without a word."""
    attempt = state.attempt
    if attempt is None or state.stage not in ("running", "judging"):
        return None
    silent: list[tuple[int, RankState, str]] = []
    raised: list[tuple[int, RankState, str]] = []
    for rank in attempt.ranks.values():
        if rank.raised is not None:
            what = f"raised {clean(rank.raised.exc_type)}: {clean(rank.raised.message)}"
            raised.append((rank.raised.raised_ns, rank, what))
        elif rank.exited is not None and not rank.exited.ordered and rank.exited.exit_code != 0:
            silent.append((rank.exited.exited_ns, rank, exit_text(rank.exited)))
    silent.sort(key=lambda entry: (entry[0], entry[1].rank))
    raised.sort(key=lambda entry: (entry[0], entry[1].rank))
    seen = silent + raised
    if not seen:
        return None
    doing = "taking evidence before anything is killed" if state.stage == "judging" else "judging"
    _, first, what = seen[0]
    named = len(seen) == 1 or len(silent) == 1
    line = f"TROUBLE  {rank_name(state, first.rank)} {what}"
    if not named:
        line = f"TROUBLE  ranks {ranks_text([rank.rank for _, rank, _ in seen])} failed; {line[9:]}"
    others = f"{_plural(len(seen), 'rank')} failed so far; " if len(seen) > 1 else ""
    return Banner(
        tone="bad",
        lines=(line, f"no verdict yet; {others}{doing}"),
        rank=first.rank if named else None,
    )


def _banner_starting(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner | None:
    last = _last_incident(state)
    if state.run is None:
        return Banner(tone="warn", lines=("STARTING  nothing is written yet", ""))
    if state.stage == "gathering":
        joined = sum(1 for node in state.nodes.values() if node.connected)
        waiting = f"waiting for nodes: {joined} of {state.run.nnodes} joined"
        return Banner(tone="warn", lines=(f"STARTING  {waiting}", last))
    if state.stage == "storing":
        again = f"RESTARTING  attempt {len(state.attempts)}" if state.attempts else "STARTING"
        return Banner(tone="warn", lines=(f"{again}  the rendezvous store comes up", last))
    if state.stage == "stopping":
        why = f": {clean(state.stop.why)}" if state.stop is not None and state.stop.why else ""
        return Banner(tone="warn", lines=(f"STOPPING  the ranks are told to stop{why}", last))
    attempt = state.attempt
    if attempt is None or attempt.first_step_ns:
        return None
    up = sum(1 for cell in cells if cell.state != "not_started")
    word = "RESTARTING" if attempt.index else "STARTING"
    since = duration_text((now_ns - attempt.started_ns) / 1e9)
    first = f"{word}  attempt {attempt.index}: {up} of {len(cells)} ranks started, {since} so far"
    if attempt.resumed_step is not None:
        first += f", resumed from step {attempt.resumed_step}"
    return Banner(tone="warn", lines=(first, last))


def _banner_running(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner:
    alive = [cell for cell in cells if cell.state != "done"]
    if alive and all(cell.state == "stale" for cell in alive):
        since = duration_text((now_ns - state.last_ns) / 1e9)
        text = f"SILENT?  no sign of life from any rank for {since} (no verdict)"
        return Banner(tone="warn", lines=(text, _last_incident(state)))
    troubled = [cell for cell in cells if cell.state in TROUBLED]
    if not troubled:
        checkpointing = sum(1 for cell in cells if cell.state == "checkpoint")
        done = sum(1 for cell in cells if cell.state == "done")
        text = f"RUNNING  all {_plural(len(cells), 'rank')} well"
        if checkpointing:
            text += f", {checkpointing} in a checkpoint"
        if done:
            text += f", {done} finished"
        return Banner(tone="ok", lines=(text, _last_incident(state)))
    first = min(troubled, key=lambda cell: (cell.step, cell.rank))
    others = len(troubled) - 1
    more = f" and {_plural(others, 'other')}" if others else ""
    text = f"SLOW?  {rank_name(state, first.rank)}{more}: {MEANINGS[first.state]} (no verdict)"
    return Banner(tone="warn", lines=(text, _last_incident(state)))


def _last_incident(state: RunState) -> str:
    if not state.incidents:
        return ""
    incident = state.incidents[-1]
    verdict = incident.verdict
    who = _who(state, verdict.first_failing, verdict.coordinates)
    text = f"last incident: {verdict.verdict} of {who}, {incident.outcome}"
    if incident.lost_steps is not None:
        text += f", {_plural(incident.lost_steps, 'step')} lost"
    if len(state.incidents) > 1:
        text += f" ({len(state.incidents)} in all)"
    return text


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
