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

PAGE_BYTES = 256
_SLOT = struct.Struct("=qqqqdBB16s")  # step, step_ns, tokens, total_steps, loss, has, finite, phase
_SLOTS_AT = (64, 160)
_COUNTER, _HEARTBEAT, _COLLECTIVES = 0, 1, 2  # indices of 8-byte words
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
    """The agent's side."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)
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
            raw = bytes(self._page[_SLOTS_AT[counter & 1] :][: _SLOT.size])
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
        )

    def close(self) -> None:
        self._words.release()
        self._page.close()
