"""What can be seen of one rank, taken before anything is killed."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.agent import activity, branches, flight, processes, spyreport, stacks
from harness.agent.connections import MOST_FLOWS, Connections
from harness.agent.recordlogs import MOST_GROUPS_OF_OTHERS
from harness.agent.workers import Worker
from harness.collectives import Collective
from harness.events import EvidenceTaken
from harness.orders import CollectEvidence
from harness.sightings import ChildTaken, Frame, ProcessFacts, ThreadTaken
from harness.worker.assignment import stack_file

_SERVER_SECONDS = 2.0
_LAST_LINES = 20
_COMPARED = 64
"""Newest entries of a record that two looks are compared by."""
_KEPT_LINES = 500
_TAIL_BYTES = 256 * 1024
_LINE_LIMIT = 500
_TELLING_SECONDS = 0.3
"""Two looks that are closer say nothing when nothing moved: pulses come every 0.25 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A rank's progress at one moment; all counters only ever change by progress."""

    at: float
    cpu_seconds: float
    counters: tuple[object, ...]
    record: tuple[tuple[int, str, bool], ...] | None
    """Id and state of the last flight record entries; None when it was not asked for."""


class Scene:
    """Takes the evidence of one rank, as `order` asks for it, with the time that `taker` has."""

    def __init__(
        self,
        worker: Worker,
        order: CollectEvidence,
        run_dir: Path,
        taker: stacks.Taker,
        connections: Connections,
    ) -> None:
        self._worker = worker
        self._order = order
        self._run_dir = run_dir
        number = order.incident or order.collection + 1
        self._folder = run_dir / "incidents" / f"{number:03d}"
        self._taker = taker
        self._connections = connections
        self._files: list[str] = []
        self._missing: list[str] = []
        self._frames: tuple[Frame, ...] = ()
        self._frames_by = ""
        self._threads: tuple[ThreadTaken, ...] = ()
        self._collectives: tuple[Collective, ...] = ()
        self._asked_record = False
        self._record_age: float | None = None
        self._children: tuple[ChildTaken, ...] = ()

    @property
    def _crashed(self) -> bool:
        """Whether it is known that ranks have failed: one look is enough then."""
        return self._order.apart == 0

    async def take(self) -> EvidenceTaken:
        """All that could be had. Never raises: what could not be had is said in `missing`."""
        worker = self._worker
        facts = processes.facts(worker.pid) if worker.alive else None
        pulse = worker.newest_pulse()
        first = second = None
        work = traffic = None
        if facts is not None:
            first = self._look(facts)
            await asyncio.gather(self._stack(), self._flight(facts), self._look_at_children())
            first = self._with_record(first)
            before = self._activity() if self._order.apart > 0 else None
            wires = await self._connections.read(worker.rank) if before is not None else None
            await self._wait_apart(first, before)
            if before is not None and worker.alive:
                work = activity.between(before, self._activity())
                now = await self._connections.read(worker.rank)
                if wires is not None and now is not None:
                    # In a world of thousands a rank may be connected with thousands of others.
                    flows = self._order.most if self._order.together else MOST_FLOWS
                    traffic = self._connections.between(wires, now, work.seconds, flows)
            second = await self._second_look(first)
        else:
            self._of_the_dead()
        apart = 0.0 if first is None or second is None else second.at - first.at
        most = self._order.most
        return EvidenceTaken(
            collection=self._order.collection,
            rank=worker.rank,
            process=facts,
            frames=self._frames[: spyreport.MOST_FRAMES],
            frames_by=self._frames_by,
            user_frame=spyreport.user_frame(self._frames),
            collectives=_newest(self._collectives, min(most, flight.MOST_ENTRIES)),
            last_lines=self._last_lines(),
            files=tuple(self._files),
            missing=tuple(self._missing),
            p2p=worker.logs.operations(most),
            groups=worker.logs.groups(most if self._order.together else MOST_GROUPS_OF_OTHERS),
            children=self._children,
            threads=self._threads,
            record_age=self._record_age,
            pulse=pulse,
            advanced=None if first is None or second is None else has_advanced(first, second),
            cpu_delta=(
                None
                if first is None or second is None
                else round(second.cpu_seconds - first.cpu_seconds, 3)
            ),
            looked_apart=round(apart, 3),
            activity=work,
            handling=worker.handling,
            traffic=traffic,
            branches=branches.above(self._frames),
            listens=worker.listens,
        )

    # --- two looks -----------------------------------------------------------------------------

    def _activity(self) -> activity.Reading:
        pid = self._worker.pid
        below = [child.pid for child in self._taker.below(pid)]
        return activity.read(pid, self._worker.files.log, below)

    def _look(self, facts: ProcessFacts) -> Look:
        reading = self._worker.page.read()
        counters = (reading.step, reading.collectives, self._worker.logs.newest_operation())
        return Look(
            at=time.monotonic(), cpu_seconds=facts.cpu_seconds, counters=counters, record=None
        )

    def _with_record(self, look: Look) -> Look:
        record = _states(self._collectives) if self._asked_record else None
        return replace(look, record=record)

    async def _wait_apart(self, first: Look, before: activity.Reading | None) -> None:
        """Until the second look is due, or the rank has ended."""
        if before is None:
            return
        due = max(first.at + self._order.apart, before.at + _TELLING_SECONDS)
        wait = self._taker.left(due - time.monotonic())
        if wait > 0:
            await asyncio.wait({self._worker.ended}, timeout=wait)

    async def _second_look(self, first: Look) -> Look | None:
        apart = self._order.apart
        facts = processes.facts(self._worker.pid) if self._worker.alive else None
        if facts is None:
            return None
        second = self._look(facts)
        if apart <= 0 or first.record is None or facts.state in stacks.FROZEN:
            return second
        try:
            data = await self._ask_record()
            return replace(second, record=_states(flight.parse(data)))
        except (flight.Unanswered, ValueError, TypeError, IndexError, KeyError):
            return second

    # --- parts ---------------------------------------------------------------------------------

    async def _stack(self) -> None:
        worker = self._worker
        fatal = Path(stack_file(str(worker.files.fatal)))
        taking = asyncio.ensure_future(
            self._taker.take(
                stacks.Subject(
                    pid=worker.pid,
                    server=worker.files.server if worker.guest else None,
                    fatal=fatal if worker.guest and self._order.last_resort else None,
                    ask=worker.own_stack if worker.guest and self._crashed else None,
                )
            )
        )
        if self._crashed:
            either: list[asyncio.Future[Any]] = [taking, worker.raised]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                self._missing.append("stack: it has told what it raised, and is ending")
                return
        stack = await taking
        if stack.report:
            self._keep("stacks", stack.suffix, stack.report)
        self._frames, self._frames_by = stack.frames, stack.by
        self._threads = stack.threads
        if stack.missing:
            self._missing.append(f"stack: {stack.missing}")

    async def _look_at_children(self) -> None:
        """Only where a rank may wait for one of them: each costs as much as a rank."""
        if self._order.apart > 0:
            self._children = await self._taker.children(self._worker.pid)

    async def _flight(self, facts: ProcessFacts) -> None:
        if not self._worker.guest:
            self._missing.append("flight record: the program runs without Harness's guest")
            return
        if facts.state in stacks.FROZEN:
            self._older_record("the process is stopped and cannot answer")
            return
        try:
            data = await self._ask_record()
        except flight.Unanswered as unanswered:
            # A rank that has raised left its record before it took its server down.
            record = _read(self._worker.files.last_record)
            if not record or not self._read_flight(record):
                self._older_record(str(unanswered))
            return
        self._asked_record = self._read_flight(data)

    async def _ask_record(self) -> bytes:
        seconds = self._taker.left(_SERVER_SECONDS)
        return await flight.ask(self._worker.files.server, "fr_trace_json", seconds)

    def _older_record(self, why: str) -> None:
        """The last periodic record instead of the present one."""
        snapshot = self._worker.snapshot
        if snapshot is None or not self._read_flight(snapshot.data):
            self._missing.append(f"flight record: {why}")
            return
        until = self._worker.ended_at or time.monotonic()
        self._record_age = round(max(0.0, until - snapshot.at), 3)
        before = "its end" if self._worker.ended_at else "this look"
        self._missing.append(
            f"flight record: {why}; as of {self._record_age:.1f} s before {before}"
        )

    def _read_flight(self, data: bytes) -> bool:
        self._keep("flight", "json", data)
        try:
            self._collectives = self._worker.logs.with_sites(flight.parse(data))
            return True
        except (ValueError, TypeError, IndexError, KeyError) as error:
            self._missing.append(f"flight record: cannot be read ({error})")
            return False

    def _of_the_dead(self) -> None:
        """A rank that is gone: what it left in files."""
        files = self._worker.files
        text = _read(files.fatal)
        if text:
            self._keep("stacks", "txt", text)
            self._frames = spyreport.from_faulthandler(text.decode("utf-8", "replace"))
            self._frames_by = "faulthandler"
        else:
            self._missing.append(f"stack: the process is gone ({self._worker.exit_text})")
        record = _read(files.last_record)
        if record:
            self._read_flight(record)
        else:
            self._older_record(f"the process is gone ({self._worker.exit_text})")
            exchange = self._worker.logs.last_exchange()
            known = {(entry.pg, entry.seq_id) for entry in self._collectives}
            if exchange is not None and (exchange.pg, exchange.seq_id) not in known:
                self._collectives = (*self._collectives, exchange)

    def _last_lines(self) -> tuple[str, ...]:
        lines = tail(self._worker.files.log, _KEPT_LINES)
        if lines:
            self._keep("logs", "log", ("\n".join(lines) + "\n").encode())
        return tuple(line[:_LINE_LIMIT] for line in lines[-_LAST_LINES:])

    def _keep(self, kind: str, suffix: str, data: bytes) -> None:
        path = self._folder / kind / f"rank{self._worker.rank:05d}.{suffix}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(data)
        except OSError as error:
            self._missing.append(f"{path.name} could not be written: {error.strerror}")
            return
        self._files.append(str(path.relative_to(self._run_dir)))


def _newest(entries: tuple[Collective, ...], most: int) -> tuple[Collective, ...]:
    """The newest `most`, of each group the newest half as many, and all that have not finished.

    A group that is used once a step would be lost among those used in every layer."""
    per_group: Counter[str] = Counter()
    kept = []
    for at, entry in enumerate(reversed(entries)):
        per_group[entry.pg] += 1
        if at < most or per_group[entry.pg] <= most // 2 or not entry.done:
            kept.append(entry)
    return tuple(reversed(kept))


async def collect(
    workers: list[Worker],
    order: CollectEvidence,
    run_dir: Path,
    seconds: float,
    on_taken: Callable[[EvidenceTaken], None],
) -> None:
    """Evidence of all `workers` side by side, each handed over as soon as it is complete."""
    taker = stacks.Taker(time.monotonic() + seconds)
    connections = Connections(workers)

    async def one(worker: Worker) -> None:
        on_taken(await Scene(worker, order, run_dir, taker, connections).take())

    await asyncio.gather(*(one(worker) for worker in workers))


def has_advanced(first: Look, second: Look) -> bool | None:
    """Whether the rank has made progress; None when the looks are too close to say that it has
    not."""
    if first.counters != second.counters:
        return True
    if None not in (first.record, second.record) and first.record != second.record:
        return True
    return False if second.at - first.at >= _TELLING_SECONDS else None


def _states(collectives: tuple[Collective, ...]) -> tuple[tuple[int, str, bool], ...]:
    last = collectives[-_COMPARED:]
    return tuple((entry.record_id, entry.state, entry.retired) for entry in last)


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file; progress bars as they were shown last."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            start = file.seek(max(0, end - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if start > 0:
        del lines[0]
    if lines and not lines[-1]:
        del lines[-1]
    return [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines[-count:]]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
