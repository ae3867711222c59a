"""What people and programs read about a run: incident card, post-mortem, JSON. From state alone.

The card has at most `CARD_LINES` lines of at most `CARD_WIDTH` columns at any number of ranks, and
no ANSI. `incident_json` and `report_json` follow the schemas in harness/schemas (version 1).
"""

import re
from datetime import datetime, timedelta, timezone
from textwrap import wrap
from typing import Any

from harness import goodput
from harness.diagnosis.signature import Signature
from harness.diagnosis.watched_files import WATCHED
from harness.incidents import CollectiveRef, Incident, Verdict
from harness.membership import CORRUPTION
from harness.state import AttemptState, RunState
from harness.state.doubts import MASKED
from harness.state.memory import whole_generations
from harness.topology import coordinates_text, ranks_text

SCHEMA = 1
CARD_LINES = 12
CARD_WIDTH = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


# --- the card ----------------------------------------------------------------------------------


def card(state: RunState, incident: Incident) -> str:
    """What happened, to whom, why, and what is done about it. No line end at the end."""
    verdict = incident.verdict
    below = _place_lines(verdict)
    if verdict.first_failing:
        below.append(f"  when: {_when(verdict)}")
    if verdict.victims:
        below.append(f"  victims: {_ranks(verdict.victims)} {_suffer(state, incident)}")
    if verdict.innocent:
        below.append(f"  innocent: {_ranks(verdict.innocent)}")
    below += [
        f"  next: {next_text(state, incident)}",
        f"  why: {incident.action_reason}",
        *_strike_lines(state, incident),
        f"  evidence: {_run_dir(state)}incidents/{incident.id:03d}/ ({verdict.confidence})",
        f"  more: harness explain {verdict.verdict}",
    ]
    return _card(verdict, below)


def _strike_lines(state: RunState, incident: Incident) -> list[str]:
    """How often the hosts that it struck have failed by now."""
    run = "" if state.run is None else state.run.run
    limit = 0 if state.run is None else state.run.policy.quarantine
    lines = []
    for host, strikes in sorted(state.strikes_by_host.items()):
        last = strikes[-1]
        if (last.run, last.incident) != (run, incident.id) or last.why != CORRUPTION:
            continue
        one = "rank" if len(last.local_ranks) == 1 else "ranks"
        where = f", local {one} {ranks_text(last.local_ranks)} this time"
        place = where if last.local_ranks else ""
        enough = 0 < limit <= len(strikes)
        out = "; left out where others can take its place" if enough else ""
        lines.append(f"  strikes: {host} has {len(strikes)} of {limit or 'any number'}{place}{out}")
    return lines[:1]


def dump_card(verdict: Verdict, folder: str) -> str:
    """The card of a verdict about dumps in `folder`: nothing is done about it, nothing of a run
    is known."""
    below = _place_lines(verdict)
    if verdict.victims:
        below.append(f"  victims: {_ranks(verdict.victims)} {_wait(verdict)}")
    if verdict.innocent:
        below.append(f"  innocent: {_ranks(verdict.innocent)}")
    below += [
        *_wrapped(f"  reason: {verdict.reason}", 3),
        f"  evidence: {folder.rstrip('/')}/{_files(verdict)} ({verdict.confidence})",
        f"  more: harness explain {verdict.verdict}",
    ]
    return _card(verdict, below)


def _files(verdict: Verdict) -> str:
    names = [ref.file for ref in verdict.evidence if ref.file]
    return ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])


def _place_lines(verdict: Verdict) -> list[str]:
    lines = []
    if verdict.where is not None:
        where = verdict.where
        lines.append(f"  where: {where.file}:{where.line} in {where.function}")
    if verdict.collective is not None:
        name = "operation" if verdict.collective.op in ("send", "recv") else "collective"
        lines.append(f"  {name}: {collective_text(verdict.collective)}")
    return lines


def _suffer(state: RunState, incident: Incident) -> str:
    """What became of the victims by the time of the verdict."""
    attempt = _attempt(state, incident.verdict.attempt)
    if attempt is not None and 0 < attempt.trouble_ns <= incident.detected_ns:
        it = "it" if len(incident.verdict.first_failing) == 1 else "them"
        return f"waited for {it} or died of {it}"
    return _wait(incident.verdict)


def _wait(verdict: Verdict) -> str:
    verb = "waits" if len(verdict.victims) == 1 else "wait"
    return f"{verb} for {'it' if len(verdict.first_failing) == 1 else 'them'}"


def _card(verdict: Verdict, below: list[str]) -> str:
    """Headline, as much of the cause as there is room for, and the lines below it."""
    above = [f"error[{verdict.verdict}]: {_headline(verdict)}"]
    cause = _wrapped(f"  cause: {verdict.cause}", CARD_LINES - len(above) - len(below))
    return "\n".join(_clip(line) for line in [*above, *cause, *below])


def _wrapped(line: str, most: int) -> list[str]:
    """`line` on up to `most` lines; what is left over is clipped."""
    lines = wrap(" ".join(line.split()), CARD_WIDTH - 9) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [f"  {lines[0]}", *(f"         {more}" for more in lines[1:])]


def collective_text(ref: CollectiveRef) -> str:
    """`all_reduce #4 on mesh_dp, 100x16 float32`."""
    group = ref.pg_desc if ref.pg_desc not in ("", "undefined") else f"group {ref.pg}"
    sizes = "+".join("x".join(map(str, shape)) or "scalar" for shape in ref.sizes)
    what = " ".join(part for part in (sizes, ref.dtype.lower()) if part)
    return f"{ref.op} #{ref.seq_id} on {group}{', ' if what else ''}{what}"


def next_text(state: RunState, incident: Incident) -> str:
    """What is done next and what it costs."""
    match incident.action:
        case "restart" | "rollback":
            return f"{incident.action} {_cost(state, incident)}"
        case "stop" if incident.exit_code == 0:
            return "end the run as succeeded (exit code 0)"
        case "stop":
            return f"stop the run with exit code {incident.exit_code}"
        case "report":
            return "nothing is changed; the run goes on"
        case _:
            return "nothing"


def _cost(state: RunState, incident: Incident) -> str:
    attempt = _attempt(state, incident.verdict.attempt)
    reached = 0 if attempt is None else attempt.step
    if incident.lost_steps is not None:
        return (
            f"from step {reached - incident.lost_steps}: {_steps(incident.lost_steps)} done again"
        )
    corrupted = incident.verdict.verdict == "silent_data_corruption" or (
        incident.action == "rollback" and Signature.parse(incident.verdict.signature).what == MASKED
    )
    mark = state.clean_restore_point if corrupted else state.newest_restore_point
    remembered = _remembered(state, incident)
    if remembered is not None and (mark is None or remembered >= mark.step):
        again = reached - remembered
        return f"from memory of step {remembered}: at most {_steps(again)} done again"
    if mark is not None:
        return f"from the checkpoint of step {mark.step}: {_steps(reached - mark.step)} done again"
    told = state.checkpoints or (attempt is not None and goodput.tells_progress(attempt))
    if told and not corrupted:
        return f"from the beginning: no checkpoint is whole, {_steps(reached)} done again"
    if corrupted:
        return "to what the script itself saved before it, or to the beginning"
    if incident.action == "rollback":
        return "to the checkpoint before, which the script then finds as its newest"
    return "from what the script itself loads: it reports no checkpoints to Harness"


def _remembered(state: RunState, incident: Incident) -> int | None:
    """The newest step that all ranks have in memory by the last word of their agents, if the next
    attempt may go on from there."""
    if incident.action != "restart" or incident.verdict.family == "numeric":
        return None
    return next((held.step for held in whole_generations(state) if not held.lost), None)


def _steps(count: int) -> str:
    count = max(0, count)
    return f"{count} step{'' if count == 1 else 's'}"


def _headline(verdict: Verdict) -> str:
    what = _what(verdict)
    if len(verdict.first_failing) > 1:
        what = what.replace("than its replicas", "than each other").replace("to its", "to their")
        what = what.replace("no replica of the others", "no replicas of each other")
        what = re.sub(r"^(is|was|has|waits|leaks)\b", lambda verb: _PLURAL[verb[0]], what)
    if not verdict.first_failing:
        return f"{what} ({verdict.node})" if verdict.node else what
    place = coordinates_text(verdict.coordinates)
    if place and len(verdict.first_failing) > 1:
        place = f"all {place}"
    inside = ", ".join(part for part in (place, verdict.node) if part)
    return f"{_ranks(verdict.first_failing)}{f' ({inside})' if inside else ''} {what}"


def _what(verdict: Verdict) -> str:
    """The kind of failure as the end of a sentence about the rank."""
    subject = Signature.parse(verdict.signature).what
    if subject == WATCHED:
        return _WHAT_OF_FILES[verdict.verdict]
    match verdict.verdict:
        case "exception" if not subject.startswith("exit code"):
            return f"raised {subject}"
        case "exception":
            return f"left with {subject}"
        case "killed_by_signal":
            return f"was killed by {subject}"
        case "loss_spike" if not verdict.first_failing:
            return "the loss went up and does not come down"
        case other:
            return _WHAT.get(other, other.replace("_", " "))


_PLURAL = {"is": "are", "was": "were", "has": "have", "waits": "wait", "leaks": "leak"}
_WHAT = {
    "exception_hidden_by_cleanup": "raised, and its clean-up hid it",
    "deterministic_failure": "failed alike at start-up",
    "out_of_memory": "ran out of memory",
    "device_fault": "lost its device",
    "rank_exited_early": "left early",
    "dataloader_worker_died": "lost a data loader worker",
    "port_in_use": "found its port in use",
    "node_lost": "is gone with its node",
    "teardown_abort": "died after its work was done",
    "collective_mismatch": "called another collective than the others",
    "shape_mismatch": "called a collective with another shape or type",
    "timeout_waiting_for_slow_rank": "was waited for in vain",
    "group_mismatch": "did not make the same process groups as the others",
    "p2p_deadlock": "wait for each other",
    "rank_stuck_outside_collective": "is stuck outside any collective",
    "rank_stuck_in_io": "is stuck in input or output",
    "rank_frozen": "is frozen",
    "dataloader_stuck": "is stuck waiting for its data loader",
    "stuck_before_first_collective": "has not come to its first collective",
    "teardown_hang": "cannot end, though its script is over",
    "network_stall": "cannot finish a collective that all have joined",
    "straggler": "is late",
    "unsynchronised_pauses": "pause at different times",
    "resource_leak_fd": "leaks open files",
    "resource_leak_memory": "leaks memory",
    "checkpoint_corrupt": "cannot read a checkpoint",
    "checkpoint_save_failed": "could not save a checkpoint",
    "checkpoint_step_mismatch": "went on from different steps",
    "nondeterminism": "compute the same thing with another result",
    "silent_data_corruption": "has other bits than its replicas",
    "replica_divergence": "is no replica of the others",
    "tp_replicated_param_divergence": "hold another copy of what is not cut",
    "buffers_differ": "hold other buffers",
    "unexpected_replication": "lost what was its own",
    "checkpoint_incomplete": "left a checkpoint incomplete",
    "nonfinite": "met a number that is not finite",
    "loss_spike": "made the loss go up",
}
_WHAT_OF_FILES = {
    "checkpoint_corrupt": "left a checkpoint file that is not good",
    "checkpoint_incomplete": "left a checkpoint incomplete",
    "checkpoint_step_mismatch": "left parts of one checkpoint that are of different steps",
}


def _when(verdict: Verdict) -> str:
    if verdict.step:
        return f"after step {verdict.step} of attempt {verdict.attempt}"
    return f"in attempt {verdict.attempt}; no optimizer step was counted yet"


def _ranks(ranks: tuple[int, ...]) -> str:
    text = ranks_text(ranks)
    if len(text) > 48:
        text = f"{text[:48].rpartition(',')[0]},… ({len(ranks)} in all)"
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def _run_dir(state: RunState) -> str:
    run = state.run
    folder = "" if run is None else run.run_dir or run.run
    return f"{folder}/" if folder else ""


def _clip(line: str) -> str:
    line = " ".join(line.splitlines()).rstrip()
    return line if len(line) <= CARD_WIDTH else f"{line[: CARD_WIDTH - 1]}…"


# --- JSON --------------------------------------------------------------------------------------


def incident_json(state: RunState, incident: Incident) -> dict[str, Any]:
    """One incident by harness/schemas/incident.schema.json. Times are RFC 3339, UTC."""
    verdict = incident.verdict
    return {
        "id": incident.id,
        "class": verdict.verdict,
        "family": verdict.family,
        "first_failing": list(verdict.first_failing),
        "victims": list(verdict.victims),
        "innocent": list(verdict.innocent),
        "coordinates": dict(verdict.coordinates),
        "node": verdict.node,
        "collective": None if verdict.collective is None else _collective_json(verdict.collective),
        "where": None
        if verdict.where is None
        else {
            "file": verdict.where.file,
            "line": verdict.where.line,
            "function": verdict.where.function,
        },
        "cause": verdict.cause,
        "reason": verdict.reason,
        "confidence": verdict.confidence,
        "evidence": [
            {"source": ref.source, "seq": ref.seq, "shows": ref.shows, "file": ref.file}
            for ref in verdict.evidence
        ],
        "attempt": verdict.attempt,
        "step": verdict.step,
        "onset": time_text(verdict.onset_ns),
        "detected": time_text(incident.detected_ns),
        "action": incident.action,
        "outcome": incident.outcome,
        "lost_steps": incident.lost_steps,
    }


def _collective_json(ref: CollectiveRef) -> dict[str, Any]:
    return {
        "pg": ref.pg,
        "pg_desc": ref.pg_desc,
        "op": ref.op,
        "seq_id": ref.seq_id,
        "sizes": [list(shape) for shape in ref.sizes],
        "dtype": ref.dtype,
    }


def report_json(state: RunState) -> dict[str, Any]:
    """The whole run by harness/schemas/report.schema.json; `outcome` is null while it lasts."""
    ended = state.ended
    return {
        "schema": SCHEMA,
        "run": "" if state.run is None else state.run.run,
        "outcome": None if ended is None else ended.outcome,
        "exit_code": None if ended is None else ended.exit_code,
        "attempts": [_attempt_json(state, attempt) for attempt in state.attempts],
        "incidents": [incident_json(state, incident) for incident in state.incidents],
        "ledger": goodput.ledger_json(state),
    }


def _attempt_json(state: RunState, attempt: AttemptState) -> dict[str, Any]:
    return {
        "attempt": attempt.index,
        "why": attempt.why,
        "world_size": attempt.world_size,
        "started": time_text(attempt.started_ns),
        "first_step": time_text(attempt.first_step_ns),
        "stopped": time_text(attempt.stopped_ns or _ended_ns(state, attempt)),
        "resumed_step": attempt.resumed_step,
        "resumed_from": attempt.resumed_from,
        "step": attempt.step,
        "loss": final_loss(attempt),
    }


def _ended_ns(state: RunState, attempt: AttemptState) -> int:
    return state.ended_ns if attempt is state.attempt else 0


def final_loss(attempt: AttemptState) -> float | None:
    """The loss of the lowest rank among those furthest that tell one."""
    told = [rank for rank in attempt.ranks.values() if rank.loss is not None]
    return max(told, key=lambda rank: (rank.step, -rank.rank)).loss if told else None


def time_text(wall_ns: int) -> str | None:
    """RFC 3339 in UTC with microseconds; None for a time that has not come."""
    if not wall_ns:
        return None
    moment = _EPOCH + timedelta(microseconds=wall_ns // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _attempt(state: RunState, index: int) -> AttemptState | None:
    return state.attempts[index] if 0 <= index < len(state.attempts) else None


# --- the post-mortem ---------------------------------------------------------------------------


def report_text(state: RunState, *, gone: bool = False) -> str:
    """The run in plain text: outcome, attempts, incidents with their cards, ledger, final loss.
    `gone`: no process of it is left, though it has not ended."""
    parts = [_outcome_lines(state, gone), _attempt_lines(state)]
    times = {each.incident: each for each in goodput.incident_times(state)}
    for incident in state.incidents:
        reason = f"  reason: {incident.verdict.reason}"
        parts.append([card(state, incident), reason, f"  times: {times_text(times[incident.id])}"])
    parts.append(goodput.ledger_lines(state))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _outcome_lines(state: RunState, gone: bool) -> list[str]:
    name = "" if state.run is None else state.run.run
    seconds = max(0, (state.ended_ns or state.last_ns) - state.started_ns) / 1e9
    if gone:
        outcome = f"run {name}: interrupted after {seconds:.1f} s, no process of it is left"
    elif state.ended is None:
        outcome = f"run {name}: {state.stage}, {seconds:.1f} s so far"
    else:
        outcome = (
            f"run {name}: {state.ended.outcome} after {seconds:.1f} s, exit code"
            f" {state.ended.exit_code}: {state.ended.reason}"
        )
    command = [] if state.run is None else [f"  command: {' '.join(state.run.command)}"]
    attempt = state.attempt
    loss = None if attempt is None else final_loss(attempt)
    at = [] if attempt is None or not attempt.step else [f"  steps: {attempt.step}"]
    return [outcome, *command, *at, *([] if loss is None else [f"  final loss: {loss:.6g}"])]


def _attempt_lines(state: RunState) -> list[str]:
    lines = []
    for attempt in state.attempts:
        since = (attempt.started_ns - state.started_ns) / 1e9
        resumed = ""
        if attempt.resumed_step is not None:
            source = _SOURCES.get(attempt.resumed_from or "", "")
            resumed = f", resumed at step {attempt.resumed_step}{source}"
        lines.append(
            f"attempt {attempt.index}: +{since:.1f} s, {attempt.world_size} ranks, {attempt.why}"
            f"{resumed}, reached step {max(attempt.step, attempt.resumed_step or 0)}"
        )
    return lines


_SOURCES = {"memory": " from memory", "neighbour": " from a neighbour's memory"}


def times_text(times: goodput.IncidentTimes) -> str:
    """How long it took to be detected, and to be recovered from."""
    text = f"detected after {times.mttd:.2f} s"
    if not times.restarted:
        return text
    lost = "unknown" if times.lost_steps is None else str(times.lost_steps)
    again = "none yet" if times.mttr is None else f"after {times.mttr:.2f} s"
    return f"{text}, first new step {again}, steps done again: {lost}"
