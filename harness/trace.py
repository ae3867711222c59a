"""A run as a Chrome trace: what each rank did when, collectives by group, incidents on top.

The Trace Event Format, JSON object form: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
Perfetto (ui.perfetto.dev) and chrome://tracing open it. A rank is a process there; its steps, its
phases and each of its process groups are threads. Times are microseconds since the run began.

When a rank has entered a collective is known, when it has left it is not: a slice ends when the
last member has entered, which is when the operation could begin. So long slices are waits, and the
member without one is whom the others waited for.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import events as e
from harness.collectives import Collective
from harness.incidents import Incident
from harness.state import AttemptState, RunState
from harness.topology import coordinates_text, ranks_name, ranks_text

RUN_PID = 1_000_000
"""The process of the run itself; that of rank N is N + RANK_PID. Perfetto shows the number."""
RANK_PID = 0
STEPS, PHASES, FIRST_GROUP = 1, 2, 10
ATTEMPTS, INCIDENTS, CHECKPOINTS = 1, 2, 3
_SHORTEST_NS = 1000
_MOST_TEXT = 200
_DECISIVE = ("restart", "rollback", "stop")

Event = dict[str, Any]


@dataclass(slots=True)
class _Entry:
    """A rank in a collective. Times are wall-clock nanoseconds."""

    at_ns: int
    op: str
    call: str
    done: bool = True
    site: str = ""


@dataclass(slots=True)
class _Group:
    """A process group of one attempt: who entered what when. By sequence number, then by rank."""

    pg: str
    desc: str
    members: tuple[int, ...]
    entries: dict[int, dict[int, _Entry]] = field(default_factory=dict)


class Tracer:
    """Takes the records of a run in order; `state` is what they fold to at the end."""

    def __init__(
        self,
        state: RunState,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
    ) -> None:
        self._state = state
        self._ranks = ranks
        self._only = attempt
        self._groups: dict[tuple[int, str, tuple[int, ...]], _Group] = {}
        self._descs: dict[tuple[int, str, int], _Group] = {}
        """By attempt, name and rank."""
        self._events: list[Event] = []
        self._steps: dict[tuple[int, int], tuple[int, int]] = {}
        """By attempt and rank: the last step that was told, and when it was done."""
        self._phases: dict[tuple[int, int], tuple[str, int]] = {}
        self._told_loss = -1
        """The last step whose loss was shown."""
        broken = {i.verdict.attempt for i in state.incidents if i.action in _DECISIVE}
        self._went_well = {
            each.index
            for each in state.attempts
            if each.index not in broken and (each is not state.attempt or state.ended is not None)
        }
        """Attempts in which what was pending at a look was finished later."""
        self._judged_ns = 0
        """Where the last incident ends."""
        self._ends_ns = {attempt.index: _end_ns(state, attempt) for attempt in state.attempts}

    # --- taking records ------------------------------------------------------------------------

    def take(self, record: e.Record) -> None:
        """One record more."""
        stamp, event = record.stamp, record.event
        if self._only is not None and stamp.attempt != self._only:
            return
        match event:
            case e.GroupCreated():
                self._made(stamp.attempt, event)
            case e.ArrivalsRead():
                self._arrived(stamp.attempt, event)
            case e.EvidenceTaken():
                self._seen(stamp.attempt, event)
            case e.EvidenceOfNode():
                for taken in event.taken:
                    self._seen(stamp.attempt, taken)
            case e.PulsesRead():
                for pulse in event.pulses:
                    self._pulse(stamp, event.node_rank, pulse)
            case e.PhaseChanged():
                self._phase(stamp.attempt, event.rank, event.phase, stamp.wall_ns)
            case e.VitalsRead():
                for vitals in event.vitals:
                    if self._wanted(vitals.rank):
                        numbers = {"MiB": round(vitals.memory_bytes / 2**20, 1)}
                        self._counter(RANK_PID + vitals.rank, "memory", stamp.wall_ns, numbers)
            case e.CheckpointSaved() if self._wanted(event.rank):
                self._saved(stamp.wall_ns, event)
            case e.FaultInjected():
                name = f"fault: {event.fault.kind}"
                pid = RANK_PID + event.fault.rank if event.fault.rank >= 0 else RUN_PID
                self._instant(pid, STEPS, name, event.injected_ns, "p", {})
            case _:
                pass

    def _wanted(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def _seen(self, attempt: int, taken: e.EvidenceTaken) -> None:
        if self._wanted(taken.rank):
            for collective in taken.collectives:
                self._recorded(attempt, taken.rank, collective)

    def _made(self, attempt: int, made: e.GroupCreated) -> None:
        members = tuple(sorted(made.ranks))
        group = self._groups.setdefault(
            (attempt, made.pg, members), _Group(pg=made.pg, desc=made.pg_desc, members=members)
        )
        self._descs.update({(attempt, made.pg, rank): group for rank in members})

    def _group(self, attempt: int, pg: str, rank: int, desc: str = "") -> _Group:
        known = self._descs.get((attempt, pg, rank))
        if known is None:
            # Nobody has told of it yet, or nobody has lived to.
            known = self._groups.setdefault((attempt, pg, ()), _Group(pg=pg, desc=desc, members=()))
        return known

    def _arrived(self, attempt: int, event: e.ArrivalsRead) -> None:
        offset_ns = self._offset_ns(event.node_rank)
        for rank in event.ranks:
            calls = [event.calls[at] for at in rank.calls] or [""] * len(rank.records)
            columns = zip(rank.groups, rank.seqs, rank.entered_us, calls, strict=False)
            for at, seq, entered_us, call in columns:
                entry = _Entry(
                    at_ns=event.base_ns + entered_us * 1000 - offset_ns,
                    op=call.partition(" ")[0] or event.ops[at],
                    call=call,
                )
                group = self._group(attempt, event.groups[at], rank.rank)
                group.entries.setdefault(seq, {}).setdefault(rank.rank, entry)

    def _recorded(self, attempt: int, rank: int, told: Collective) -> None:
        sizes = "+".join("x".join(map(str, shape)) or "scalar" for shape in told.sizes)
        entry = _Entry(
            at_ns=told.created_ns - self._offset_of(attempt, rank),
            op=told.op.rpartition(":")[2],
            call=" ".join([told.op.rpartition(":")[2], sizes, *dict.fromkeys(told.dtypes)]),
            done=told.done or attempt in self._went_well,
            site=told.site,
        )
        group = self._group(attempt, told.pg, rank, told.pg_desc)
        group.entries.setdefault(told.seq_id, {})[rank] = entry

    def _pulse(self, stamp: e.Stamp, node_rank: int, pulse: Any) -> None:
        if pulse.loss is not None and pulse.step_ns and pulse.step != self._told_loss:
            self._told_loss = pulse.step
            self._counter(RUN_PID, "loss", pulse.step_ns, {"loss": pulse.loss})
        if not self._wanted(pulse.rank):
            return
        self._phase(stamp.attempt, pulse.rank, pulse.phase, stamp.wall_ns)
        if not pulse.step_ns:
            return
        key = (stamp.attempt, pulse.rank)
        at_ns = pulse.step_ns - self._offset_ns(node_rank)
        before = self._steps.get(key)
        self._steps[key] = (pulse.step, at_ns)
        if before is None or pulse.step <= before[0] or at_ns <= before[1]:
            return
        first = before[0] + 1
        name = f"step {pulse.step}" if first == pulse.step else f"steps {first}-{pulse.step}"
        facts = {"steps": pulse.step - before[0], "loss": pulse.loss, "tokens": pulse.tokens}
        self._slice(RANK_PID + pulse.rank, STEPS, name, before[1], at_ns, facts)

    def _phase(self, attempt: int, rank: int, phase: str, at_ns: int) -> None:
        if not self._wanted(rank) or attempt not in self._ends_ns:
            return
        at_ns = min(at_ns, self._ends_ns[attempt])  # its last word may come late
        before = self._phases.get((attempt, rank))
        if before is not None and before[0] == phase:
            return
        if before is not None and at_ns > before[1]:
            self._slice(RANK_PID + rank, PHASES, before[0], before[1], at_ns, {"attempt": attempt})
        self._phases[attempt, rank] = (phase, at_ns)

    def _saved(self, at_ns: int, event: e.CheckpointSaved) -> None:
        facts = {"rank": event.rank, "path": event.path, "seconds": event.seconds}
        self._instant(RANK_PID + event.rank, STEPS, f"saved step {event.step}", at_ns, "t", facts)

    # --- what comes of it ----------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """All trace events, names of processes and threads first. Call it once, at the end."""
        for (attempt, rank), (phase, since_ns) in self._phases.items():
            end_ns = self._ends_ns.get(attempt, self._state.last_ns)
            self._slice(RANK_PID + rank, PHASES, phase, since_ns, end_ns, {"attempt": attempt})
        self._whole_run()
        tracks = self._collectives()
        yield from self._names(tracks)
        yield from sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0.0)))

    def _whole_run(self) -> None:
        for attempt in self._state.attempts:
            if self._only is not None and attempt.index != self._only:
                continue
            end_ns = self._ends_ns[attempt.index]
            facts = {"why": attempt.why, "world_size": attempt.world_size, "step": attempt.step}
            name = f"attempt {attempt.index}"
            self._slice(RUN_PID, ATTEMPTS, name, attempt.started_ns, end_ns, facts)
        for incident in self._state.incidents:
            if self._only is None or incident.verdict.attempt == self._only:
                self._incident(incident)
        for mark in self._state.checkpoints.values():
            if mark.whole_ns:
                name, facts = f"checkpoint of step {mark.step}", {"path": mark.path}
                self._instant(RUN_PID, CHECKPOINTS, name, mark.whole_ns, "p", facts)

    def _incident(self, incident: Incident) -> None:
        verdict = incident.verdict
        who = ranks_name(verdict.first_failing) if verdict.first_failing else "the run"
        facts = {
            "class": verdict.verdict,
            "first_failing": list(verdict.first_failing),
            "cause": verdict.cause,
            "action": incident.action,
            "outcome": incident.outcome,
        }
        name = f"{verdict.verdict}: {who}"
        onset_ns = verdict.onset_ns or incident.detected_ns
        begin_ns = max(onset_ns, self._judged_ns)
        self._judged_ns = max(begin_ns, incident.detected_ns)
        self._slice(RUN_PID, INCIDENTS, name, begin_ns, self._judged_ns, facts)
        self._instant(RUN_PID, INCIDENTS, name, onset_ns, "g", {"cause": verdict.cause})
        for rank in verdict.first_failing:
            if self._wanted(rank):
                self._instant(RANK_PID + rank, STEPS, name, onset_ns, "p", {})

    def _collectives(self) -> dict[tuple[int, int], str]:
        """Slices of all groups; the names of the threads that they are on."""
        names: dict[tuple[int, int], str] = {}
        order: dict[tuple[str, str], int] = {}
        tracks: dict[tuple[int, int], list[tuple[int, int, str, dict[str, Any]]]] = {}
        for (attempt, _, _), group in self._groups.items():
            label = group.desc if group.desc not in ("", "undefined") else "group"
            tid = FIRST_GROUP + order.setdefault((label, group.pg), len(order))
            for seq, entries in group.entries.items():
                for rank, slice_ in self._of_one(attempt, group, seq, entries):
                    tracks.setdefault((RANK_PID + rank, tid), []).append(slice_)
                    names[RANK_PID + rank, tid] = f"{label} ({group.pg})"
        for (pid, tid), slices in tracks.items():
            slices.sort(key=lambda each: (each[0], each[1]))
            for at, (begin_ns, until_ns, name, facts) in enumerate(slices):
                # On one track nothing may overlap; operations under way together are cut.
                end_ns = max(until_ns, begin_ns + _SHORTEST_NS)
                if at + 1 < len(slices):
                    end_ns = min(end_ns, slices[at + 1][0])
                self._slice(pid, tid, name, begin_ns, end_ns, facts)
        return names

    def _of_one(
        self, attempt: int, group: _Group, seq: int, entries: Mapping[int, _Entry]
    ) -> Iterator[tuple[int, tuple[int, int, str, dict[str, Any]]]]:
        last = max(entries, key=lambda rank: entries[rank].at_ns)
        missing = sorted(set(group.members) - entries.keys())
        for rank, entry in entries.items():
            if not self._wanted(rank):
                continue
            open_end = not entry.done and missing
            end_ns = self._ends_ns.get(attempt, 0) if open_end else entries[last].at_ns
            facts = {
                "seq_id": seq,
                "group": group.pg,
                "role": group.desc,
                "members": ranks_text(group.members),
                "call": entry.call[:_MOST_TEXT],
                "waited_us": round(max(0, end_ns - entry.at_ns) / 1000, 1),
                "last_to_enter": None if missing else last,
                "finished": entry.done,
                "attempt": attempt,
            }
            if missing:
                facts["not_on_record"] = ranks_text(missing)
            if entry.site:
                facts["line"] = entry.site
            name = f"{entry.op} #{seq}" + ("" if entry.done else " (not finished)")
            yield rank, (entry.at_ns, max(end_ns, entry.at_ns), name, facts)

    def _names(self, tracks: Mapping[tuple[int, int], str]) -> Iterator[Event]:
        run = "" if self._state.run is None else self._state.run.run
        yield from _process(RUN_PID, f"run {run}", 0)
        for tid, name in ((ATTEMPTS, "attempts"), (INCIDENTS, "incidents"), (CHECKPOINTS, "saves")):
            yield _thread(RUN_PID, tid, name)
        for rank in sorted(self._all_ranks()):
            place = coordinates_text(self._state.coordinates.get(rank, {}))
            name = f"rank {rank}" + (f" ({place})" if place else "")
            yield from _process(RANK_PID + rank, name, rank + 1)
            yield _thread(RANK_PID + rank, STEPS, "steps")
            yield _thread(RANK_PID + rank, PHASES, "phase")
        for (pid, tid), name in sorted(tracks.items()):
            yield _thread(pid, tid, name)

    def _all_ranks(self) -> set[int]:
        return {
            rank
            for attempt in self._state.attempts
            if self._only in (None, attempt.index)
            for rank in attempt.ranks
            if self._wanted(rank)
        }

    # --- clocks and events ---------------------------------------------------------------------

    def _offset_ns(self, node_rank: int) -> int:
        """To take off times of a node whose clock is not that of the head."""
        head, node = self._state.nodes.get(0), self._state.nodes.get(node_rank)
        if head is not None and node is not None and head.host == node.host:
            return 0
        return self._state.clocks.offset_ns(node_rank) or 0

    def _offset_of(self, attempt: int, rank: int) -> int:
        attempts: list[AttemptState] = self._state.attempts
        known = attempts[attempt].ranks.get(rank) if 0 <= attempt < len(attempts) else None
        return 0 if known is None else self._offset_ns(known.node_rank)

    def _us(self, wall_ns: int) -> float:
        return round(max(0, wall_ns - self._state.started_ns) / 1000, 3)

    def _slice(
        self, pid: int, tid: int, name: str, begin_ns: int, end_ns: int, facts: dict[str, Any]
    ) -> None:
        begin = self._us(begin_ns)
        duration = round(max(0.0, self._us(end_ns) - begin), 3)
        event = {"ph": "X", "name": name, "cat": "harness", "ts": begin, "dur": duration}
        self._events.append({**event, "pid": pid, "tid": tid, "args": facts})

    def _instant(
        self, pid: int, tid: int, name: str, at_ns: int, scope: str, facts: dict[str, Any]
    ) -> None:
        event = {"ph": "i", "name": name, "cat": "harness", "ts": self._us(at_ns), "s": scope}
        self._events.append({**event, "pid": pid, "tid": tid, "args": facts})

    def _counter(self, pid: int, name: str, at_ns: int, numbers: dict[str, float]) -> None:
        event = {"ph": "C", "name": name, "cat": "harness", "ts": self._us(at_ns)}
        self._events.append({**event, "pid": pid, "tid": 0, "args": numbers})


def _end_ns(state: RunState, attempt: AttemptState) -> int:
    """When the last worker was gone, but not after the next attempt began."""
    following = attempt.index + 1
    if following < len(state.attempts):
        started_ns = state.attempts[following].started_ns
        return min(attempt.stopped_ns or started_ns, started_ns)
    return attempt.stopped_ns or state.ended_ns or state.last_ns


def _process(pid: int, name: str, order: int) -> Iterable[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    sort = {"sort_index": order}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": sort}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
