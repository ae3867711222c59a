"""The pulse page: what a rank says about its progress, readable after the rank was killed.

The page is an anonymous memory file (memfd) that the agent makes and the worker inherits: nothing
is left on disk, and the last state outlives a SIGKILL. Two slots are written in turn and published
by one aligned 8-byte store of a counter, so that a reader never sees half a slot, not even when
the writer died in the middle of one.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

PAGE_BYTES = 256
_SLOT = struct.Struct("=qqqqdBB16s")  # step, step_ns, tokens, total_steps, loss, has, finite, phase
_SLOTS_AT = (64, 160)
_COUNTER, _HEARTBEAT, _COLLECTIVES = 0, 1, 2  # indices of 8-byte words


class Meeting(NamedTuple):
    """Words of the page in which a rank and its agent agree on a step at which all ranks do
    something. They hold steps plus one, so that 0 means none.

    The rank writes the first two: where it asked last, and the target it knows of and has not
    passed without knowing. The agent writes the others.
    """

    asked: int
    known: int
    target: int
    agreed: int


STOP = Meeting(3, 4, 5, 6)
SAVE = Meeting(16, 17, 18, 19)  # between the two slots
_AGREEMENT_SECONDS = 30.0
"""Longest wait at a step for the word that all ranks stop there: a controller may be restarted."""
_LOOK_SECONDS = 0.001
_TRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseReading:
    """One consistent read. Times: `heartbeat_ns` monotonic, `step_ns` wall clock, nanoseconds."""

    step: int
    phase: str
    heartbeat_ns: int
    step_ns: int
    loss: float | None
    loss_finite: bool
    tokens: int
    total_steps: int
    collectives: int = 0
    """Collectives and point-to-point operations begun, over all groups."""
    asked_stop: int = -1
    """Last step at which the script asked whether to stop; -1: it never did."""


def make_page(name: str, size: int = PAGE_BYTES) -> int:
    """A file descriptor of a fresh, zeroed page (close-on-exec; pass it on explicitly).

    With a larger `size` there is room for more behind it.
    """
    descriptor = os.memfd_create(f"harness-pulse-{name}", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


class PulseWriter:
    """The worker's side. `put` belongs to one thread at a time, `beat` to any other."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._page).cast("Q")

    def beat(self, collectives: int = 0) -> None:
        self._words[_COLLECTIVES] = collectives
        self._words[_HEARTBEAT] = time.monotonic_ns()

    def should_stop(self, step: int) -> bool:
        """Whether all ranks stop at `step`; the same answer on each.

        Waits at a step that is proposed: the controller either agrees to it, when no rank had
        passed it before it was told, or names a later one.
        """
        return self._agreed(STOP, step) > 0

    def should_save(self, step: int) -> bool:
        """Whether all ranks save at `step`, and go on; the same answer on each. Waits as
        `should_stop` does."""
        before = self._words[SAVE.asked]
        return self._agreed(SAVE, step) > before

    def _agreed(self, at: Meeting, step: int) -> int:
        """The word of the step that was agreed to, where `step` is that one or a later one; 0."""
        words = self._words
        before, words[at.asked] = words[at.asked], step + 1
        deadline = 0.0
        while True:
            target: int = words[at.target]
            words[at.known] = target if before < target else 0
            if target == 0 or step + 1 < target:
                return 0
            if words[at.agreed] == target:
                return target
            now = time.monotonic()
            deadline = deadline or now + _AGREEMENT_SECONDS
            if now > deadline:
                return 0
            time.sleep(_LOOK_SECONDS)

    def put(
        self,
        *,
        step: int,
        phase: str,
        step_ns: int,
        loss: float | None,
        loss_finite: bool,
        tokens: int,
        total_steps: int,
    ) -> None:
        following = self._words[_COUNTER] + 1
        _SLOT.pack_into(
            self._page,
            _SLOTS_AT[following & 1],
            step,
            step_ns,
            tokens,
            total_steps,
            loss or 0.0,
            loss is not None,
            loss_finite,
            phase.encode()[:16],
        )
        self._words[_COUNTER] = following


class PulseReader:
    """The agent's side. It writes nothing but the steps at which the rank is to stop or to save."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._page).cast("Q")

    def step(self) -> int:
        """The step alone, as cheap as can be."""
        counter = self._words[_COUNTER]
        if counter == 0:
            return 0
        step: int = struct.unpack_from("=q", self._page, _SLOTS_AT[counter & 1])[0]
        return step

    def read(self) -> PulseReading:
        """The newest published state; zeros and phase `init` before the worker wrote any."""
        for _ in range(_TRIES):
            counter = self._words[_COUNTER]
            at = _SLOTS_AT[counter & 1]
            raw = self._page[at : at + _SLOT.size]
            if counter == self._words[_COUNTER]:
                break
        step, step_ns, tokens, total, loss, has, finite, phase = _SLOT.unpack(raw)
        return PulseReading(
            step=step,
            phase=phase.rstrip(b"\0").decode(errors="replace") or "init",
            heartbeat_ns=self._words[_HEARTBEAT],
            step_ns=step_ns,
            loss=loss if has else None,
            loss_finite=bool(finite) if counter else True,
            tokens=tokens,
            total_steps=total,
            collectives=self._words[_COLLECTIVES],
            asked_stop=self.asked(STOP),
        )

    def asked(self, at: Meeting) -> int:
        """Last step at which the script asked; -1: it never did."""
        asked: int = self._words[at.asked]
        return asked - 1

    def propose(self, at: Meeting, step: int) -> None:
        """Have the rank wait when it comes to `step`."""
        self._words[at.target] = step + 1

    def agree(self, at: Meeting, step: int) -> None:
        """Have the rank do it at `step`."""
        self._words[at.target] = step + 1
        self._words[at.agreed] = step + 1

    def missed(self, at: Meeting) -> bool:
        """Whether the rank may have asked at the proposed step, or later, before it was proposed.

        To be asked a moment after `propose`: what the rank wrote before must have arrived.
        """
        target = self._words[at.target]
        return bool(self._words[at.asked] >= target and self._words[at.known] != target)

    def close(self) -> None:
        self._words.release()
        self._page.close()
