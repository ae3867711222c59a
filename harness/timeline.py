"""A run told line by line: what a person wants to know of its records, with the rest left out."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness import events as e
from harness import orders as o
from harness.state import RunState
from harness.topology import ranks_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`at_ns` is wall clock; `what` is one word for programs."""

    at_ns: int
    what: str
    text: str


class Teller:
    """Takes the records of a run in order. Exits of ranks that end together are told as one."""

    def __init__(self, state: RunState) -> None:
        """`state` is the whole run's."""
        self._started_ns = state.started_ns
        self._steps: set[int] = set()
        self._left: list[tuple[str, int]] = []
        self._left_ns = 0

    def take(self, record: e.Record) -> Iterator[Moment]:
        """What there is to tell by now, oldest first."""
        if not isinstance(record.event, e.WorkerExited) and self._left:
            yield self._leave()
        at_ns, event = record.stamp.wall_ns, record.event
        if isinstance(event, e.WorkerExited):
            if self._left and self._left[0][0] != _ending(event):
                yield self._leave()
            self._left.append((_ending(event), event.rank))
            self._left_ns = event.exited_ns or at_ns
            return
        if isinstance(event, e.PulsesRead):
            yield from self._first_step(record.stamp, event)
            return
        told = _told(event)
        if told is not None:
            yield Moment(at_ns=at_ns, what=told[0], text=told[1])

    def end(self) -> Iterator[Moment]:
        """What is left when there are no more records."""
        if self._left:
            yield self._leave()

    def _leave(self) -> Moment:
        ending = self._left[0][0]
        text = f"{ranks_name([rank for _, rank in self._left])} {ending}"
        self._left = []
        return Moment(at_ns=self._left_ns, what="exit", text=text)

    def _first_step(self, stamp: e.Stamp, event: e.PulsesRead) -> Iterator[Moment]:
        for pulse in event.pulses:
            if pulse.step > 0 and stamp.attempt not in self._steps:
                self._steps.add(stamp.attempt)
                text = f"step {pulse.step}, the first that was seen of attempt {stamp.attempt}"
                yield Moment(at_ns=pulse.step_ns or stamp.wall_ns, what="first_step", text=text)


def _ending(event: e.WorkerExited) -> str:
    if event.ordered:
        return "stopped, as told"
    if event.signal is not None:
        return f"died of signal {event.signal}"
    return f"left with exit code {event.exit_code}"


def _told(event: e.Event) -> tuple[str, str] | None:
    match event:
        case e.RunStarted():
            return "run", f"run {event.run}: {' '.join(event.command)}"
        case e.AgentJoined():
            return "node", f"node {event.node_rank} joins: {event.host}"
        case e.AgentLost():
            return "node", f"node {event.node_rank} is lost: {event.why}"
        case e.ControllerStarted() if event.incarnation:
            return "controller", f"the controller is back, restart {event.incarnation}"
        case e.AttemptStarted():
            return "attempt", f"attempt {event.attempt}: {event.world_size} ranks, {event.why}"
        case e.Regrouping():
            return "restart", f"attempt {event.attempt} {event.why}"
        case e.WorkerRaised():
            return "raised", f"rank {event.rank} raises {event.exc_type}: {event.message}"
        case e.FaultInjected():
            return "fault", f"{event.fault.kind} was done on purpose"
        case e.CheckpointLoaded() if event.rank == 0:
            return "loaded", f"rank 0 goes on from step {event.step}: {event.path}"
        case e.CheckpointSaved() if event.rank == 0:
            return "saved", f"rank 0 has saved step {event.step}: {event.path}"
        case e.CheckpointFailed():
            return "save_failed", f"rank {event.rank} could not save step {event.step}: {event.why}"
        case e.StallLooked() if event.ranks:
            return "stall", f"no progress: {event.why}"
        case _:
            return _decided(event)


def _decided(event: e.Event) -> tuple[str, str] | None:
    match event:
        case e.IncidentOpened(incident=incident):
            verdict = incident.verdict
            who = ranks_name(verdict.first_failing) if verdict.first_failing else "the run"
            text = f"incident {incident.id}: {verdict.verdict} of {who}: {verdict.cause}"
            return "incident", f"{text}; {incident.action}"
        case e.IncidentClosed():
            return "closed", f"incident {event.incident_id}: {event.outcome}"
        case e.CommandTaken(command=o.ShowStacks()):
            return None
        case e.CommandTaken():
            word = type(event.command).__name__
            said = "accepted" if event.accepted else "refused"
            return "command", f"{event.by} asks for {word}: {said}, {event.why}"
        case e.RunEnded():
            text = f"{event.outcome}, exit code {event.exit_code}: {event.reason}"
            return "end", text
        case _:
            return None
