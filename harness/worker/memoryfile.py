"""The memory of one rank that its node's agent owns: generations of its state, in slots.

An anonymous memory file (memfd), as the pulse page is: it outlives the rank, has no name that could
be left anywhere, is not bound by the size of /dev/shm, and is gone with the last process that holds
it. It is as long as could be and takes memory only where something was written.

    page 0      a word for the agent, then eight words for each slot
    slot i      from (i + 1) * SPAN: the data, then the index, which describes the data

A slot counts once its state is `WHOLE`: one aligned 8-byte store that comes last. The index is JSON
behind the SHA-256 of its text; nothing here is ever unpickled.
"""

import hashlib
import json
import mmap
import os
from dataclasses import dataclass
from typing import Any

SLOTS = 4
SPAN = 1 << 40
"""Bytes of address space, not of memory, for each slot."""
EMPTY, WRITING, WHOLE = 0, 1, 2
_SLOT_WORDS = 8
_SLOTS_AT = 8  # words
_STATE, _ATTEMPT, _STEP, _SHARD, _DATA, _INDEX, _SEND, _BROUGHT = range(_SLOT_WORDS)
_SENT, _NEIGHBOUR = 0, 1
"""Words before the slots: the step that the neighbour has, plus one; whether there is one."""
_SHA = 64


class BadMemory(Exception):
    """What is in a slot cannot be trusted; the reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A whole generation. `send`: the neighbour is to get it. `brought`: it came from another
    node. `shard` is the same on ranks that hold the same parts of the same tensors."""

    number: int
    attempt: int
    step: int
    shard: int
    data_bytes: int
    index_bytes: int
    send: bool
    brought: bool

    @property
    def bytes(self) -> int:
        return self.data_bytes + self.index_bytes


def make(name: str) -> int:
    """A descriptor of a fresh file (close-on-exec). Raises OSError where none can be had."""
    descriptor = os.memfd_create(f"harness-memory-{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, (SLOTS + 1) * SPAN)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class MemoryFile:
    """A mapping of such a file, for the rank that writes it, or for the agent. One writer a slot:
    the rank while it lives, else the agent."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("Q")
        self._maps: dict[int, mmap.mmap] = {}

    def close(self) -> None:
        """Let go of it; views that are still in use keep their memory."""
        self._words.release()
        self._page.close()
        self._maps.clear()
        os.close(self.descriptor)

    # --- slots ---------------------------------------------------------------------------------

    def whole(self) -> list[Slot]:
        """All whole generations, newest first: later attempts before earlier ones."""
        found = [slot for number in range(SLOTS) if (slot := self._slot(number))]
        return sorted(found, key=lambda slot: (slot.attempt, slot.step), reverse=True)

    def find(self, attempt: int, step: int) -> Slot | None:
        return next((s for s in self.whole() if (s.attempt, s.step) == (attempt, step)), None)

    def _slot(self, number: int) -> Slot | None:
        words = self._words[self._at(number) : self._at(number) + _SLOT_WORDS].tolist()
        if words[_STATE] != WHOLE:
            return None
        return Slot(
            number=number,
            attempt=words[_ATTEMPT],
            step=words[_STEP],
            shard=words[_SHARD],
            data_bytes=words[_DATA],
            index_bytes=words[_INDEX],
            send=bool(words[_SEND]),
            brought=bool(words[_BROUGHT]),
        )

    def _at(self, number: int) -> int:
        return _SLOTS_AT + number * _SLOT_WORDS

    def begin(self, number: int) -> None:
        """What the slot held does not count any more: it is about to be written."""
        self._words[self._at(number) + _STATE] = WRITING

    def commit(
        self,
        number: int,
        *,
        attempt: int,
        step: int,
        shard: int,
        data_bytes: int,
        index_bytes: int,
        send: bool = False,
        brought: bool = False,
    ) -> None:
        """What was written to the slot counts from now on."""
        at = self._at(number)
        values = (attempt, step, shard, data_bytes, index_bytes, int(send), int(brought))
        for place, value in enumerate(values, _ATTEMPT):
            self._words[at + place] = value
        self._words[at + _STATE] = WHOLE

    def drop(self, number: int) -> None:
        self._words[self._at(number) + _STATE] = EMPTY

    def mark_brought(self, number: int) -> None:
        self._words[self._at(number) + _BROUGHT] = 1

    def keep_only(self, attempt: int, step: int) -> None:
        """Drop every slot but that of this generation. Only while no rank uses the file."""
        for number in range(SLOTS):
            slot = self._slot(number)
            if slot is None or (slot.attempt, slot.step) != (attempt, step):
                self.drop(number)

    # --- words between agent and rank ------------------------------------------------------------

    @property
    def neighbour(self) -> bool:
        """Whether another node takes copies."""
        return bool(self._words[_NEIGHBOUR])

    @neighbour.setter
    def neighbour(self, there: bool) -> None:
        self._words[_NEIGHBOUR] = int(there)

    @property
    def sent(self) -> int:
        """Step of the newest generation that the neighbour has, whole; -1: none."""
        step: int = self._words[_SENT]
        return step - 1

    @sent.setter
    def sent(self, step: int) -> None:
        self._words[_SENT] = step + 1

    # --- contents ------------------------------------------------------------------------------

    def view(self, number: int, length: int) -> mmap.mmap:
        """The first `length` bytes of a slot at least. Raises ValueError beyond its span, OSError
        where there is no room to map it."""
        if not 0 < length <= SPAN:
            raise ValueError(f"{length} bytes do not fit into a slot of memory")
        known = self._maps.get(number)
        if known is None or len(known) < length:
            pages = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
            known = mmap.mmap(self.descriptor, pages, offset=(number + 1) * SPAN)
            self._maps[number] = known
        return known

    def index(self, slot: Slot) -> dict[str, Any]:
        """The index of a generation. Raises BadMemory when it is not what was written."""
        try:
            view = self.view(slot.number, slot.bytes)
            text = bytes(view[slot.data_bytes : slot.bytes])
            if hashlib.sha256(text[_SHA:]).hexdigest().encode() != text[:_SHA]:
                raise BadMemory("its index is not what was staged (checksum)")
            index: dict[str, Any] = json.loads(text[_SHA:])
        except (ValueError, OSError) as error:
            raise BadMemory(f"its index cannot be read: {error}") from None
        return index


def encoded(index: dict[str, Any]) -> bytes:
    """An index as it stands in a slot."""
    text = json.dumps(index, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest().encode() + text
