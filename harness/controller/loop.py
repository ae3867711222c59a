"""The controller's loop: record in, append, fold, decide, append and fold every decision.

The one writer of the journal and the one holder of the state. Synchronous between two awaits of
its callers, so that no two records interleave. It knows no gRPC; the decisions are made by a pure
`Decider` (harness.recovery).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness import codec, journal
from harness import events as e
from harness.controller.agents import Agent, Agents, Refused
from harness.controller.clock import SteadyClock
from harness.controller.plausible import flaw
from harness.errors import PlatformError
from harness.journal import JournalWriter
from harness.orders import Command
from harness.state import RunState, fold
from harness.wire import control_pb2 as pb
from harness.wire.waiting import News

log = logging.getLogger("harness.controller")

DECISIONS = (
    e.RunStarted,
    e.ControllerStarted,
    e.AgentJoined,
    e.AgentLost,
    e.AttemptStarted,
    e.NodesAwaited,
    e.Regrouping,
    e.HostStruck,
    e.OrderGiven,
    e.CommandTaken,
    e.IncidentOpened,
    e.IncidentClosed,
    e.IncidentSettled,
    e.RunEnded,
)
"""What only a controller may say."""

_MOST_DECISIONS = 100_000
_SHORTEST_WAKE = 0.005
_REST_FACTOR, _LONGEST_REST = 20.0, 0.1
"""After a plan, others follow no sooner than this many times what it took: what thousands of agents
say in that time is planned for at once. In a small run a plan takes less than a record."""


class Decider(Protocol):
    """The pure core's side of the loop. Times are wall-clock nanoseconds."""

    def plan(self, state: RunState, now_ns: int) -> Sequence[e.Event]: ...
    def next_wake_ns(self, state: RunState, now_ns: int) -> int | None: ...
    def accept(self, state: RunState, command: Command) -> tuple[bool, str]: ...


class Loop:
    """The run, from its journal. `on_event` hears every event that happens from now on.

    Awaitable facts: `ended` is set when the run has ended, `broken` gets the exception after
    which this controller must not go on.
    """

    def __init__(
        self,
        *,
        writer: JournalWriter,
        decider: Decider,
        on_event: Callable[[RunState, e.Event], None],
    ) -> None:
        self.state = RunState()
        self.agents = Agents()
        self.writer = writer
        self.ended = asyncio.Event()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.grew = asyncio.Event()
        """Set when the journal grows; replaced by a fresh one then."""
        self.decided = News()
        """A decision waits to be made durable."""
        self._decider = decider
        self._on_event = on_event
        self._next_seq = 0
        self._clock = SteadyClock()
        self._wake: asyncio.TimerHandle | None = None
        self._rests_until = 0.0

    def resume(self, path: Path) -> None:
        """Fold what an earlier controller wrote. Raises JournalError."""
        for record in journal.read(path):
            fold(self.state, record)
            self.agents.note(record, self.state)
            if record.stamp.source == "controller":
                self._next_seq = record.stamp.seq + 1
                self._clock.follow(record.stamp)

    def start(self, started: e.RunStarted, pid: int, address: str) -> None:
        """Take charge."""
        with self._step():
            if self.state.run is None:
                self._say(started)
            incarnation = self.state.incarnations
            self._say(e.ControllerStarted(pid=pid, address=address, incarnation=incarnation))

    def join(self, hello: pb.Hello) -> Agent:
        """Take an agent in, or back in. Raises Refused."""
        agent = self.agents.rejoining(hello, self.state)
        if agent is None:
            rank, before = self.agents.place(hello, self.state)
            with self._step(at_once=False):
                if before is not None:
                    why = f"another agent, pid {hello.pid} on {hello.host}, took its place"
                    self._say(e.AgentLost(node_rank=rank, why=why))
                self._say(
                    e.AgentJoined(
                        node_rank=rank,
                        host=hello.host,
                        pid=hello.pid,
                        local_world_size=hello.local_world_size,
                    )
                )
            agent = self.agents.by_source(f"agent:{rank}")
            if agent is None:
                raise Refused("it was taken in and lost at once")
        agent.silence = 0.0
        return agent

    def take(self, agent: Agent, lines: Sequence[bytes]) -> int:
        """Records of `agent` in, those seen before left out; the highest seq in the journal.

        A line that is no record of this agent is logged and left out.
        """
        agent.silence = 0.0
        fresh: list[bytes] = []
        records: list[e.Record] = []
        last_seq = agent.last_seq
        for line in lines:
            record = self._checked(agent, line)
            if record is not None and record.stamp.seq > last_seq:
                last_seq = record.stamp.seq
                fresh.append(line)
                records.append(record)
        if records:
            with self._step(at_once=False):
                self.writer.append_lines(fresh)
                for record in records:
                    self._take_in(record)
        return agent.last_seq

    def lose(self, node_rank: int, why: str) -> None:
        """The agent of `node_rank` is gone for good."""
        agent = self.agents.by_source(f"agent:{node_rank}")
        if agent is not None and (agent.lost or agent.left):
            return
        with self._step():
            self._say(e.AgentLost(node_rank=node_rank, why=why))

    def do(self, command: Command, by: str) -> tuple[bool, str]:
        """Somebody asks for something; (accepted, why)."""
        with self._step():
            accepted, why = self._decider.accept(self.state, command)
            self._say(e.CommandTaken(command=command, by=by, accepted=accepted, why=why))
        return accepted, why

    # --- one step ------------------------------------------------------------------------------

    @contextmanager
    def _step(self, *, at_once: bool = True) -> Iterator[None]:
        """One change and what follows from it: at once, or as soon as the plan has rested.

        A failure in it ends this controller: the state may be half changed, the journal is whole,
        and the next controller starts from that."""
        try:
            yield
            now = time.monotonic()
            if at_once or now >= self._rests_until:
                self._settle()
            else:
                self._settle_by(self._rests_until - now)
        except Exception as error:
            if not self.broken.done():
                log.exception("a step failed")
                self.broken.set_exception(error)
            raise
        grew, self.grew = self.grew, asyncio.Event()
        grew.set()
        if self.state.ended is not None:
            self.ended.set()

    def _settle(self) -> None:
        began = time.thread_time()
        now_ns = self._clock.now_ns()
        made = 0
        while decisions := self._decider.plan(self.state, now_ns):
            for decision in decisions:
                self._say(decision)
            made += len(decisions)
            if made > _MOST_DECISIONS:
                raise PlatformError(f"the plan never comes to rest; last: {decisions[-1]}")
        self._set_alarm(self._decider.next_wake_ns(self.state, now_ns), now_ns)
        took = time.thread_time() - began
        self._rests_until = time.monotonic() + min(_REST_FACTOR * took, _LONGEST_REST)

    def _settle_by(self, seconds: float) -> None:
        """Plan within `seconds`, unless that happens before anyway."""
        loop = asyncio.get_running_loop()
        if self._wake is None or self._wake.when() > loop.time() + seconds:
            self._wake_in(seconds)

    def _set_alarm(self, wake_ns: int | None, now_ns: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_ns is not None:
            self._wake_in(max((wake_ns - now_ns) / 1e9, _SHORTEST_WAKE))

    def _wake_in(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = asyncio.get_running_loop().call_later(seconds, self._wake_up)

    def _wake_up(self) -> None:
        with self._step():
            pass

    def _say(self, event: e.Event) -> None:
        """Stamp and journal an event of the controller's own."""
        attempt = len(self.state.attempts) - 1
        if isinstance(event, e.AttemptStarted):
            attempt = event.attempt
        stamp = e.Stamp(
            run=event.run if isinstance(event, e.RunStarted) else self._run_name(),
            attempt=max(attempt, 0),
            source="controller",
            seq=self._next_seq,
            wall_ns=self._clock.now_ns(),
            mono_ns=time.monotonic_ns(),
        )
        record = e.Record(stamp=stamp, event=event)
        self.writer.append(record)
        self._next_seq += 1
        self._take_in(record)
        self.decided.set()

    def _take_in(self, record: e.Record) -> None:
        fold(self.state, record)
        self.agents.note(record, self.state)
        self._on_event(self.state, record.event)

    def _run_name(self) -> str:
        return "" if self.state.run is None else self.state.run.run

    def _checked(self, agent: Agent, line: bytes) -> e.Record | None:
        try:
            record = codec.decode(line)
        except codec.CodecError as error:
            log.error("left out a record of %s: %s", agent.source, error)
            return None
        stamp = record.stamp
        if (stamp.run, stamp.source) != (self._run_name(), agent.source) or b"\n" in line:
            log.error("left out a record that %s sent as %s", agent.source, stamp)
            return None
        if wrong := flaw(record.event):
            log.error("left out a %s of %s: %s", type(record.event).__name__, agent.source, wrong)
            return None
        if isinstance(record.event, DECISIONS):
            log.error("left out a %s that %s sent", type(record.event).__name__, agent.source)
            return None
        return record
