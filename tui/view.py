"""What the screens show, computed from a run's state: pure, frozen, without a terminal.

`build` takes the state and `now`; the same state and the same `now` give the same view, whether
the records came from a live controller, from a journal being written, or from an old run. The
plain `harness status` shows the same view.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.goodput import ettr
from harness.incidents import Incident
from harness.saving import Saving, saving
from harness.state import RunState
from harness.tui.banner import Banner, banner_of, gone_banner, unled_banner
from harness.tui.cells import CULPRITS, TROUBLED, Cell, cells_of
from harness.tui.wording import axes_of, clean, place_text, plural, where_text, who_text


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
    ettr: float | None
    """Useful share of the time of all ranks, 0 to 1."""


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
        lost = "" if self.lost_steps is None else f", {plural(self.lost_steps, 'step')} lost"
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
    saving: Saving | None = None
    """What has become of the newest request for a checkpoint."""

    def place(self, cell: Cell) -> str:
        """Coordinates as text, such as `dp1 pp0 tp1`; empty when they are not known."""
        return place_text(self.axes, self.coordinates.get(cell.rank, {}))

    def order(self) -> tuple[int, ...]:
        """Position among the cells of each place of the mesh, row-major; empty where that is the
        order of the ranks, or is not known of all."""
        if len(self.coordinates) < len(self.cells) or not self.axes:
            return ()
        places: list[int] = []
        for cell in self.cells:
            at = 0
            for name, size in self.axes:
                at = at * size + self.coordinates[cell.rank].get(name, 0)
            places.append(at)
        if sorted(places) != list(range(len(places))) or places == sorted(places):
            return ()
        order = [0] * len(places)
        for index, place in enumerate(places):
            order[place] = index
        return tuple(order)

    def next_troubled(
        self, rank: int, step: int, among: frozenset[int] | None = None
    ) -> int | None:
        """The next (`step` 1) or previous (-1) troubled rank after `rank`, culprits before the
        slow and the stale, only `among` these; None when all is well."""
        cells = [cell for cell in self.cells if among is None or cell.rank in among]
        culprits = [cell.rank for cell in cells if cell.state in CULPRITS]
        ranks = culprits or [cell.rank for cell in cells if cell.state in TROUBLED]
        if not ranks:
            return None
        if step > 0:
            return next((r for r in ranks if r > rank), ranks[0])
        return next((r for r in reversed(ranks) if r < rank), ranks[-1])


def build(state: RunState, now_ns: int, *, gone: bool = False, led: bool = True) -> View:
    """The view of `state` at `now_ns` (wall clock, nanoseconds). `gone`: no process of it is left,
    though it has not ended. `led`: its controller lives; else nothing is known since its death."""
    seen_ns = now_ns
    led = led or bool(state.ended_ns) or gone
    if state.ended_ns or gone or not led:
        now_ns = state.ended_ns or state.last_ns
    attempt = state.attempt
    cells = cells_of(state, attempt, now_ns, over=gone) if attempt is not None else ()
    if gone:
        banner = gone_banner(state, seen_ns)
    else:
        banner = banner_of(state, cells, now_ns) if led else unled_banner(state, seen_ns)
    return View(
        header=_header(state, now_ns),
        banner=banner,
        cells=cells,
        axes=axes_of(state),
        coordinates=dict(state.coordinates),
        incidents=tuple(_incident_row(state, incident) for incident in state.incidents),
        culprit=banner.rank,
        saving=saving(state),
    )


def _header(state: RunState, now_ns: int) -> Header:
    attempt = state.attempt
    mark = state.newest_restore_point
    ranks = attempt.ranks.values() if attempt is not None else ()
    world = attempt.world_size if attempt else sum(n.local_world_size for n in state.nodes.values())
    return Header(
        run=clean(state.run.run) if state.run is not None else "",
        stage=state.ended.outcome if state.ended is not None else state.stage,
        world_size=world,
        mesh=" ".join(f"{name}{size}" for name, size in axes_of(state) if size > 1),
        attempt=attempt.index if attempt is not None else None,
        step=attempt.step if attempt is not None else 0,
        total_steps=max([rank.total_steps for rank in ranks], default=0),
        loss=run_loss(state),
        elapsed=max(0, now_ns - state.started_ns) / 1e9 if state.started_ns else 0.0,
        quiet=max(0, now_ns - state.last_ns) / 1e9 if state.stage == "running" else 0.0,
        checkpoint_step=mark.step if mark is not None else None,
        ettr=ettr(state, now_ns),
    )


def run_loss(state: RunState) -> float | None:
    """The loss of the lowest rank among the furthest that report one: a number some rank has
    said, never a mean over ranks that mean different things by it."""
    attempt = state.attempt
    if attempt is None:
        return None
    furthest = None
    for rank in attempt.ranks.values():  # in their order
        if rank.loss is not None and (furthest is None or rank.step > furthest.step):
            furthest = rank
    return None if furthest is None else furthest.loss


def _incident_row(state: RunState, incident: Incident) -> IncidentRow:
    verdict = incident.verdict
    return IncidentRow(
        id=incident.id,
        detected_ns=incident.detected_ns,
        verdict=verdict.verdict,
        who=who_text(state, verdict.first_failing, verdict.coordinates),
        ranks=verdict.first_failing,
        cause=clean(verdict.cause),
        reason=clean(verdict.reason),
        where=where_text(verdict.where),
        victims=verdict.victims,
        confidence=verdict.confidence,
        attempt=verdict.attempt,
        step=verdict.step,
        action=incident.action,
        action_reason=clean(incident.action_reason),
        outcome=incident.outcome,
        lost_steps=incident.lost_steps,
    )
