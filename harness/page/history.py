"""What a page shows over time and a state does not keep: losses by step, lives of ranks."""

import math
from dataclasses import dataclass, field

from harness import events as e

MOST_POINTS = 1500
"""Of a curve; beyond it every other one is left out, again and again."""


@dataclass(slots=True)
class Curve:
    """Losses of one attempt: step -> loss, as the rank that tells first has it."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    every: int = 1
    _seen: int = 0

    def add(self, step: int, loss: float) -> None:
        """Steps that were shown before are passed over."""
        if self.steps and step <= self.steps[-1]:
            return
        self._seen += 1
        if self._seen % self.every:
            return
        self.steps.append(step)
        self.losses.append(loss)
        if len(self.steps) > MOST_POINTS:
            self.every *= 2
            del self.steps[::2], self.losses[::2]


@dataclass(slots=True)
class Life:
    """A worker from its start to its end. Times are wall-clock nanoseconds, 0: not yet."""

    attempt: int
    rank: int
    began_ns: int
    ended_ns: int = 0
    raised_ns: int = 0
    well: bool = True
    """False when it ended by itself with an error."""


@dataclass(slots=True)
class History:
    """Takes the records of a run in order."""

    curves: dict[int, Curve] = field(default_factory=dict)
    """By attempt."""
    lives: dict[tuple[int, int], Life] = field(default_factory=dict)
    """By attempt and rank."""

    def take(self, record: e.Record) -> None:
        """One record more."""
        event, attempt = record.event, record.stamp.attempt
        match event:
            case e.PulsesRead():
                for pulse in event.pulses:
                    if pulse.loss is not None and math.isfinite(pulse.loss):
                        self.curves.setdefault(attempt, Curve()).add(pulse.step, pulse.loss)
            case e.WorkerStarted():
                self.lives[attempt, event.rank] = Life(
                    attempt=attempt, rank=event.rank, began_ns=record.stamp.wall_ns
                )
            case e.WorkerRaised():
                life = self.lives.get((attempt, event.rank))
                if life is not None:
                    life.raised_ns = event.raised_ns
            case e.WorkerExited():
                life = self.lives.get((attempt, event.rank))
                if life is not None:
                    life.ended_ns = event.exited_ns
                    life.well = event.ordered or event.exit_code == 0
            case _:
                pass
