"""Stamps as if no node's clock were ever set.

Each source stamps with two clocks: the wall clock, which may jump, and the monotonic one, which
does not. The first stamp of a process tells how far they are apart; a later one that disagrees by
more than clocks drift was made by a wall clock that was set, and is put right. So is a clock that
is ahead from the start: it would carry the run's newest time, which deadlines count from, into the
future. One that is behind does no such harm, and its stamps stay.
"""

from dataclasses import dataclass, field, replace

from harness import events as e

_DRIFT_NS = 1_000_000_000
_AHEAD_NS = 5_000_000_000
"""Less than this may have passed without a record."""


@dataclass(slots=True)
class WallClocks:
    """By source: what the wall clock of its process was ahead of the monotonic one, ns."""

    bases: dict[str, int] = field(default_factory=dict)

    def steady(self, record: e.Record, last_ns: int) -> e.Record:
        """`record` as a steady clock would have stamped it; `last_ns` is the newest time so far."""
        stamp, event = record.stamp, record.event
        match event:
            case e.AgentJoined(node_rank=node_rank):
                self.bases.pop(f"agent:{node_rank}", None)
                return record
            case _:
                pass
        if stamp.source == "controller":
            return record  # its clock is a steady one
        base = self.bases.get(stamp.source)
        if base is None:
            ahead = stamp.wall_ns - last_ns > _AHEAD_NS
            wall_ns = last_ns if ahead else stamp.wall_ns
            base = self.bases[stamp.source] = wall_ns - stamp.mono_ns
        shift = base + stamp.mono_ns - stamp.wall_ns
        if abs(shift) <= _DRIFT_NS:
            return record
        stamp = replace(stamp, wall_ns=stamp.wall_ns + shift)
        return replace(record, stamp=stamp, event=_shifted(event, shift))


def _shifted(event: e.Event, shift: int) -> e.Event:
    """The times in it come from the same clock, a moment before its stamp."""
    match event:
        case e.WorkerRaised():
            return replace(event, raised_ns=event.raised_ns + shift)
        case e.WorkerExited():
            return replace(event, exited_ns=event.exited_ns + shift)
        case e.PulsesRead():
            pulses = (
                replace(pulse, step_ns=pulse.step_ns + shift) if pulse.step_ns else pulse
                for pulse in event.pulses
            )
            return replace(event, pulses=tuple(pulses))
        case _:
            return event
