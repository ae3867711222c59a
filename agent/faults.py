"""Harm done on purpose on this node: kept until it is due, done, told, and undone in the end.

What a kind does stands in `harness.chaos`, which is imported only when a fault was asked for.
"""

import asyncio
import contextlib
import importlib
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.agent.workers import Worker
from harness.errors import UsageError
from harness.events import FaultInjected
from harness.faults import ANY, Fault, whom
from harness.worker.armed import ARM

_LOOK_SECONDS = 0.0005
"""Between two looks at the step: less than a step of the smallest model takes."""
_KINDS, _OUTSIDE, _INSIDE = (f"harness.chaos.{name}" for name in ("kinds", "outside", "inside"))


@dataclass(slots=True, kw_only=True)
class Pending:
    """A fault that is to be done `left` more times. `told`: attempts whose worker knows of it."""

    fault: Fault
    left: int
    told: set[int] = field(default_factory=set)
    last_attempt: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What faults may know of the node, each as of the moment it is asked for."""

    rank: Callable[[], int]
    pids: Callable[[], Iterable[int]]
    """Of the ranks that live."""
    find: Callable[[int], Worker | None]
    """The live worker of a rank."""
    zygote: Callable[[], int]
    run_dir: Callable[[], Path]
    flushed: Callable[[], Coroutine[Any, Any, None]]
    """Done when the controller has all that was reported."""


class Faults:
    """The faults of one node."""

    def __init__(
        self,
        node: Node,
        *,
        report: Callable[[int, FaultInjected], None],
        notice: Callable[[str], None],
        in_background: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        self._node = node
        self._report = report
        self._notice = notice
        self._in_background = in_background
        self._pending: dict[int, Pending] = {}
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._checkpoint = ""

    def order(self, fault: Fault) -> None:
        """See to it that `fault` is done when it is due."""
        try:
            kind = importlib.import_module(_KINDS).check(fault)
        except UsageError as error:
            self._notice(f"harness: no fault was done: {error.message}")
            return
        number = len(self._pending)
        self._pending[number] = pending = Pending(fault=fault, left=fault.times)
        if kind.place == "agent":
            self._in_background(self._from_outside(kind, pending))
        elif (worker := self._node.find(fault.rank)) is not None:
            self.started(worker)

    # --- in the worker -------------------------------------------------------------------------

    def armed_for(self, rank: int, attempt: int) -> str:
        """What a worker is to be told when it starts; empty: nothing."""
        return self._text(self._due_inside(rank, attempt), attempt)

    def started(self, worker: Worker) -> None:
        """Arm what was asked for while the worker was started."""
        due = self._due_inside(worker.rank, worker.attempt)
        if due and not worker.guest:
            for pending in due.values():
                pending.left = 0
                self._unfit(
                    pending.fault, "it is done inside a rank, and this program is not Python"
                )
            return
        self._arm(worker, {n: p for n, p in due.items() if worker.attempt not in p.told})

    def _due_inside(self, rank: int, attempt: int) -> dict[int, Pending]:
        return {
            number: pending
            for number, pending in self._pending.items()
            if pending.fault.rank == rank
            and pending.left > 0
            and pending.fault.attempt in (None, attempt)
            and importlib.import_module(_KINDS).find(pending.fault.kind).place == "worker"
        }

    def _text(self, due: Mapping[int, Pending], attempt: int) -> str:
        if not due:
            return ""
        for pending in due.values():
            pending.told.add(attempt)
        encode = importlib.import_module(_INSIDE).encode
        text: str = encode({number: pending.fault for number, pending in due.items()})
        return text

    def _arm(self, worker: Worker, due: Mapping[int, Pending]) -> None:
        text = self._text(due, worker.attempt)
        if text:
            with contextlib.suppress(OSError):  # it has ended this moment
                worker.link_end.send(ARM + text.encode())

    def heard(self, worker: Worker, fact: dict[str, Any]) -> bool:
        """Whether `fact` was about a fault, which is told then."""
        pending = self._pending.get(fact.get("number", -1))
        match fact.get("type"):
            case "FaultDone" if pending is not None:
                self._tell(pending, worker, int(fact["at_ns"]))
            case "FaultUnfit" if pending is not None:
                pending.left = 0
                self._unfit(pending.fault, str(fact["why"]))
            case "CheckpointSaved":
                self._checkpoint = str(fact.get("path", ""))
                return False
            case "CheckpointFile":
                if fact.get("what") == "saved":
                    self._checkpoint = str(fact.get("path", ""))
                return False
            case _:
                return False
        return True

    # --- from outside --------------------------------------------------------------------------

    async def _from_outside(self, kind: Any, pending: Pending) -> None:
        node, asked_at = self._node, time.monotonic()
        while pending.left > 0:
            worker = await self._moment(pending, asked_at)
            outside = importlib.import_module(_OUTSIDE)
            target = outside.Target(
                fault=pending.fault,
                values=importlib.import_module(_KINDS).values(kind, pending.fault.parameters),
                pid=0 if worker is None else worker.pid,
                others=tuple(p for p in node.pids() if worker is None or p != worker.pid),
                zygote=node.zygote(),
                run_dir=node.run_dir(),
                checkpoint=self._checkpoint,
                head=node.rank() == 0,
            )
            at_ns = time.time_ns()
            if worker is None:
                # Told first: what follows may be the end of this process.
                self._tell(pending, None, at_ns)
                await node.flushed()
            try:
                undo = kind.do(target)
            except (importlib.import_module(_KINDS).Unfit, OSError, ValueError, KeyError) as error:
                pending.left = 0
                self._unfit(pending.fault, str(error))
                return
            if worker is not None:
                self._tell(pending, worker, at_ns)
            if undo is not None:
                self._undo.append((kind.name, undo))
                self._in_background(self._undo_after(undo, target.values.get("seconds", 0.0)))

    async def _moment(self, pending: Pending, asked_at: float) -> Worker | None:
        """When the fault is due: the worker to harm, None where it is a node's."""
        fault = pending.fault
        while True:
            waited = time.monotonic() - asked_at
            if fault.seconds is None or waited >= fault.seconds:
                if fault.rank == ANY:
                    return None
                worker = self._node.find(fault.rank)
                if worker is not None and _is_due(pending, worker):
                    return worker
            await asyncio.sleep(_LOOK_SECONDS)

    async def _undo_after(self, undo: Callable[[], None], seconds: float) -> None:
        """Undo after `seconds`; 0: only in the end."""
        if seconds > 0:
            await asyncio.sleep(seconds)
            self._undo_one(undo)

    def undo_all(self) -> None:
        """Take back what can be taken back, the newest first."""
        for _, undo in reversed(list(self._undo)):
            self._undo_one(undo)

    def _undo_one(self, undo: Callable[[], None]) -> None:
        for entry in [entry for entry in self._undo if entry[1] is undo]:
            self._undo.remove(entry)
            try:
                undo()
            except OSError as error:
                self._notice(f"harness: {entry[0]} could not be undone: {error}")

    # --- telling -------------------------------------------------------------------------------

    def _tell(self, pending: Pending, worker: Worker | None, at_ns: int) -> None:
        pending.left -= 1
        attempt, pid = (0, os.getpid()) if worker is None else (worker.attempt, worker.pid)
        pending.last_attempt = attempt
        self._report(attempt, FaultInjected(fault=pending.fault, pid=pid, injected_ns=at_ns))

    def _unfit(self, fault: Fault, why: str) -> None:
        self._notice(f"harness: {fault.kind} of {whom(fault)} was not done: {why}")


def _is_due(pending: Pending, worker: Worker) -> bool:
    fault = pending.fault
    if worker.attempt == pending.last_attempt or fault.attempt not in (None, worker.attempt):
        return False
    if fault.step is not None and worker.page.step() < fault.step:
        return False
    if fault.seq_id is None and not fault.phase:
        return True
    reading = worker.page.read()
    return reading.collectives >= (fault.seq_id or 0) and fault.phase in ("", reading.phase)
