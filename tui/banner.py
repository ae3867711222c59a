"""The two lines that say how a run is. Pure.

With trouble they name the rank where it began, as far as that is known, and what comes next.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.incidents import Incident
from harness.saving import saving
from harness.state import RankState, RunState
from harness.topology import ranks_text
from harness.tui.cells import MEANINGS, TROUBLED, Cell
from harness.tui.wording import (
    clean,
    duration_text,
    exit_text,
    plural,
    rank_name,
    where_text,
    who_text,
)

Tone = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """Two lines that say how the run is; with trouble, who began it and what comes next."""

    tone: Tone
    lines: tuple[str, str]
    rank: int | None = None
    """The rank it names as the one where trouble began."""

    def title(self, run: str) -> str:
        """What the terminal is called while this is the news: short, and rarely another."""
        word = self.lines[0].split("  ", maxsplit=1)[0]
        who = "" if self.rank is None else f" rank {self.rank}"
        return f"{word}{who} {run or 'harness'}"


def banner_of(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner:
    """Ended, then trouble, then starting, then well: the first that holds speaks."""
    if state.ended is not None:
        return _ended(state)
    open_incidents = [i for i in state.incidents if i.outcome == "open"]
    if open_incidents:
        return _incident(state, open_incidents[-1], doing=countdown(state, now_ns))
    trouble = _first_trouble(state)
    if trouble is not None:
        return trouble
    lost = [node for node in state.nodes.values() if not node.connected]
    if lost:
        nodes = ", ".join(f"node {n.node_rank} {n.host} ({clean(n.lost_why)})" for n in lost)
        return Banner(tone="bad", lines=(f"LOST  {nodes}", _last_incident(state)))
    stalled = _stalled(state, now_ns)
    if stalled is not None:
        return stalled
    starting = _starting(state, cells, now_ns)
    return starting if starting is not None else _running(state, cells, now_ns)


def gone_banner(state: RunState, now_ns: int) -> Banner:
    """Of a run that has not ended and of which no process is left."""
    last = duration_text((now_ns - state.last_ns) / 1e9)
    sign = f"its last sign was {last} ago" if state.last_ns else "its journal is empty"
    first = f"GONE  no process of it is left; {sign}"
    return Banner(tone="bad", lines=(first, _last_incident(state)))


def unled_banner(state: RunState, now_ns: int) -> Banner:
    """Of a run whose controller is gone for the moment; what is known ends with it."""
    since = duration_text((now_ns - state.last_ns) / 1e9)
    text = f"UNLED  no controller for {since}; its launcher starts it again, the ranks go on"
    return Banner(tone="warn", lines=(text, _last_incident(state)))


def _ended(state: RunState) -> Banner:
    ended = state.ended
    assert ended is not None
    steps = state.attempt.step if state.attempt is not None else 0
    took = duration_text((state.ended_ns - state.started_ns) / 1e9)
    restarts = max(0, len(state.attempts) - 1)
    figures = f"{steps} steps in {took}, {plural(restarts, 'restart')}"
    tones: Mapping[str, Tone] = {"succeeded": "ok", "stopped": "warn"}
    tone: Tone = tones.get(ended.outcome, "bad")
    if tone == "bad" and state.incidents:
        incident = _incident(state, state.incidents[-1])
        second = f"FAILED  exit code {ended.exit_code}: {clean(ended.reason)}; {figures}"
        return Banner(tone="bad", lines=(incident.lines[0], second), rank=incident.rank)
    reason = f": {clean(ended.reason)}" if ended.reason else ""
    first = f"{ended.outcome.upper()}  exit code {ended.exit_code}{reason}"
    last = _last_incident(state)
    return Banner(tone=tone, lines=(first, figures + (f"; {last}" if last else "")))


def countdown(state: RunState, now_ns: int) -> str:
    """What a restart, or the end of a run, waits for now and for how long at most; empty when
    nothing of the kind goes on."""
    attempt, run = state.attempt, state.run
    if attempt is None or run is None:
        return ""
    number = len(state.attempts)
    if state.stage == "stopping" and attempt.stop_ordered_ns:
        left = (attempt.stop_ordered_ns - now_ns) / 1e9 + run.policy.stop_grace
        return f"stopping, killed in {left:.0f} s" if left > 0 else "stopping, killed by now"
    if state.stage == "gathering":
        here = sum(1 for node in state.nodes.values() if node.connected)
        left = max(0.0, (state.stage_ns - now_ns) / 1e9 + run.policy.rendezvous_timeout)
        return f"waiting for nodes, {here} of {run.nnodes} here, {duration_text(left)} left"
    if state.stage == "storing":
        return f"restarting as attempt {number}"
    if state.stage == "running" and attempt.index and not attempt.first_step_ns:
        up = sum(1 for rank in attempt.ranks.values() if rank.status != "not_started")
        since = duration_text((now_ns - attempt.started_ns) / 1e9)
        return f"restarted {since} ago, {up} of {attempt.world_size} ranks up, no step yet"
    return ""


def _incident(state: RunState, incident: Incident, doing: str = "") -> Banner:
    verdict = incident.verdict
    who = who_text(state, verdict.first_failing, verdict.coordinates)
    first = f"{verdict.verdict.upper()}  {who}: {clean(verdict.cause)}"
    parts = [doing] if doing else []
    if verdict.where is not None:
        parts.append(f"at {where_text(verdict.where)}")
    if verdict.victims:
        parts.append(f"{plural(len(verdict.victims), 'rank')} fell with it")
    done = "" if doing.startswith("restart") else "next: "
    parts.append(f"{done}{incident.action} ({clean(incident.action_reason)})")
    rank = verdict.first_failing[0] if verdict.first_failing else None
    return Banner(tone="bad", lines=(first, "; ".join(parts)), rank=rank)


def _first_trouble(state: RunState) -> Banner | None:
    """Before the verdict: what was seen, and no more. Ranks that died without an exception come
    first: an exception may be a peer's cry that its connection is gone. One of several ranks is
    named as the beginning only when it is the only one that went without a word."""
    attempt = state.attempt
    if attempt is None or state.stage not in ("running", "judging"):
        return None
    if not (attempt.failed or attempt.gone):
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
    others = f"{plural(len(seen), 'rank')} failed so far; " if len(seen) > 1 else ""
    return Banner(
        tone="bad",
        lines=(line, f"no verdict yet; {others}{doing}"),
        rank=first.rank if named else None,
    )


def _stalled(state: RunState, now_ns: int) -> Banner | None:
    """Ranks wait for another one that may only be slow: who, since when, and what it is seen to do.
    The next progress takes it away again."""
    attempt = state.attempt
    stall = None if attempt is None or state.stage != "running" else attempt.stall
    if stall is None or not stall.look.ranks:
        return None
    since = duration_text((now_ns - stall.since_ns) / 1e9)
    again = max(0.0, (stall.look.again_ns - now_ns) / 1e9)
    return Banner(
        tone="warn",
        lines=(
            f"WAITING  for {since}: {clean(stall.look.why)}",
            f"no verdict yet; looked at {plural(stall.looks, 'time')}, again in {again:.0f} s",
        ),
        rank=stall.look.ranks[0],
    )


def _starting(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner | None:
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


def _running(state: RunState, cells: Sequence[Cell], now_ns: int) -> Banner:
    counts = Counter([cell.state for cell in cells])
    if counts["stale"] and counts.keys() <= {"stale", "done"}:
        since = duration_text((now_ns - state.last_ns) / 1e9)
        text = f"SILENT?  no sign of life from any rank for {since} (no verdict)"
        return Banner(tone="warn", lines=(text, _last_incident(state)))
    if TROUBLED.isdisjoint(counts):
        checkpointing, done = counts["checkpoint"], counts["done"]
        text = f"RUNNING  all {len(cells)} ranks well" if len(cells) != 1 else "RUNNING  all well"
        if checkpointing:
            text += f", {checkpointing} in a checkpoint"
        if done:
            text += f", {done} finished"
        now = saving(state)
        under_way = f"SAVING  {now.words}" if now is not None and not now.over else ""
        return Banner(tone="ok", lines=(text, under_way or _last_incident(state)))
    troubled = [cell for cell in cells if cell.state in TROUBLED]
    first = min(troubled, key=lambda cell: (cell.step, cell.rank))
    others = len(troubled) - 1
    more = f" and {plural(others, 'other')}" if others else ""
    text = f"SLOW?  {rank_name(state, first.rank)}{more}: {MEANINGS[first.state]} (no verdict)"
    return Banner(tone="warn", lines=(text, _last_incident(state)))


def _last_incident(state: RunState) -> str:
    if not state.incidents:
        return ""
    incident = state.incidents[-1]
    verdict = incident.verdict
    who = who_text(state, verdict.first_failing, verdict.coordinates)
    text = f"last incident: {verdict.verdict} of {who}, {incident.outcome}"
    if incident.lost_steps is not None:
        text += f", {plural(incident.lost_steps, 'step')} lost"
    if len(state.incidents) > 1:
        text += f" ({len(state.incidents)} in all)"
    return text
