"""The user's lines that call collectives, in shared memory: a table of lines, and the newest calls.

Torch's flight record keeps no line of Gloo's collectives in the form that can be had without the
interpreter. A call is noted with its begin and end, so that a reader can tell which entries of the
flight record were made by it: one, or several for collectives of objects.
"""

import itertools
import mmap
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from types import CodeType, FrameType
from typing import Any

from harness.worker import exchanges, frames

TEXTS = 512
TEXT_BYTES = 256
CALLS = 256
CALL_BYTES = 32
TABLE_BYTES = TEXTS * TEXT_BYTES
PARTS_AT = TABLE_BYTES + CALLS * CALL_BYTES
REGION_BYTES = PARTS_AT + exchanges.REGION_BYTES
# serial, begun_ns, ended_ns (0: not yet), group's number in the group log, line's number in the
# table, root in the group, serial again (its low bits)
_CALL = struct.Struct("=QqqHHHH")
_END = struct.Struct("=q")
_ENDED_AT = 16
_LOW = 0xFFFF
_MOST_FRAMES = 24
_MOST_KNOWN = 4096
assert _CALL.size == CALL_BYTES


Observer = Callable[[str, tuple[int, ...], Any, tuple[Any, ...], dict[str, Any]], None]
"""Takes a call about to be made: the method's name, the group's global ranks, the user's frame, and
the arguments. Raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a collective. Times are wall-clock nanoseconds; `ended_ns` 0: it has not returned.

    `group` is its number in the group log, `site` is `file:line:function`. `root` is the group rank
    that it names, -1 for none.
    """

    begun_ns: int
    ended_ns: int
    group: int
    site: str
    root: int = -1
    parts: exchanges.Parts | None = None


class SiteWriter:
    """The worker's side. Threads may lose each other's notes, never tear them."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._texts: dict[str, int] = {}
        # By id, kept alive: to hash a code object is to hash all that is in it.
        self._lines: dict[tuple[int, int], int] = {}
        self.users: dict[int, CodeType] = {}
        self.framework: dict[int, CodeType] = {}
        """Code of torch, Python and ours, as far as seen; `users` is the other."""
        self._count = itertools.count(1)
        self._parts = exchanges.PartsWriter(memory, start + PARTS_AT)
        self.observer: Observer | None = None

    def text(self, text: str) -> int:
        """The number of `text` in the table, from 1; 0 when the table is full."""
        number = self._texts.get(text)
        if number is None:
            number = len(self._texts) + 1
            if number >= TEXTS:
                return 0
            raw = text.encode()[-TEXT_BYTES:]  # of a long path the end tells more
            at = self._start + number * TEXT_BYTES
            self._memory[at : at + TEXT_BYTES] = raw.ljust(TEXT_BYTES, b"\0")
            self._texts[text] = number
        return number

    def is_framework(self, code: CodeType) -> bool:
        """Whether `code` is torch's, Python's or ours."""
        key = id(code)
        if key in self.framework:
            return True
        if key in self.users:
            return False
        framework = frames.is_framework_file(code.co_filename)
        known = self.framework if framework else self.users
        if len(known) >= _MOST_KNOWN:
            known.clear()
            self._lines.clear()
        known[key] = code
        return framework

    def line(self, frame: FrameType) -> int:
        """The table's number of the line that `frame`, which is no framework's, is at."""
        key = (id(frame.f_code), frame.f_lasti)
        number = self._lines.get(key)
        if number is None:
            if len(self._lines) >= _MOST_KNOWN:
                self._lines.clear()
            code = frame.f_code
            number = self.text(f"{code.co_filename}:{frame.f_lineno}:{code.co_name}")
            self._lines[key] = number
        return number

    def noted(
        self,
        original: Callable[..., Any],
        known: Mapping[int, tuple[int, tuple[int, ...]]],
        stopped: Sequence[bool],
    ) -> Callable[..., Any]:
        """`original`, a method of ProcessGroup, with each call noted. `known` has the number in the
        group log by the group's id. `stopped` is no longer empty when no more is to be noted.

        All is done in one function: after a blocking call the caches are cold, and each Python
        function costs ten times what it does in a loop.
        """
        memory, first, here = self._memory, self._start + TABLE_BYTES, sys._getframe
        framework, lines, line_of = self.framework, self._lines, self._site_of
        name = str(getattr(original, "__name__", "collective"))
        pack_call, pack_end, now, nobody = _CALL.pack_into, _END.pack_into, time_ns, (0, ())
        count, rooted, root_of, no_root = (
            self._count,
            name in exchanges.ROOTED,
            exchanges.root_of,
            exchanges.NO_ROOT,
        )
        note_parts = self._parts.note if name in exchanges.IN_PARTS else None

        def collective(pg: Any, *args: Any, **kwargs: Any) -> Any:
            if stopped:
                return original(pg, *args, **kwargs)
            try:
                frame: Any = here(1)
                while id(frame.f_code) in framework:
                    frame = frame.f_back
                site = lines.get((id(frame.f_code), frame.f_lasti)) or line_of(frame)
                number, ranks = known.get(id(pg), nobody)
                if self.observer is not None:
                    self.observer(name, ranks, frame, args, kwargs)
                serial, root = next(count), root_of(args, kwargs) if rooted else no_root
                if note_parts is not None:
                    note_parts(serial, pg, len(ranks), args)
                at = first + serial % CALLS * CALL_BYTES
                pack_call(memory, at, serial, now(), 0, number & 0xFFFF, site, root, serial & _LOW)
            except Exception:  # nothing of ours may keep the call from being made
                return original(pg, *args, **kwargs)
            try:
                return original(pg, *args, **kwargs)
            finally:
                pack_end(memory, at + _ENDED_AT, now())

        collective.__name__ = name
        collective.__doc__ = getattr(original, "__doc__", None)
        collective.__wrapped__ = original  # type: ignore[attr-defined]
        return collective

    def _site_of(self, frame: FrameType | None) -> int:
        """The line of the first frame from `frame` outwards that is no framework's; 0 for none."""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if not self.is_framework(frame.f_code):
                return self.line(frame)
            frame = frame.f_back
        return 0


class SiteReader:
    """The agent's side."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._parts = exchanges.PartsReader(memory, start + PARTS_AT)

    def text(self, number: int) -> str:
        if not 0 < number < TEXTS:
            return ""
        at = self._start + number * TEXT_BYTES
        raw = self._memory[at : at + TEXT_BYTES]
        return raw.rstrip(b"\0").decode(errors="replace")

    def calls(self) -> list[Call]:
        """The newest calls, oldest first, without those whose line is not known."""
        found: list[tuple[int, Call]] = []
        base = self._start + TABLE_BYTES
        region = self._memory[base : base + CALLS * CALL_BYTES]
        for at in range(0, len(region), CALL_BYTES):
            serial, begun, ended, group, site, root, low = _CALL.unpack_from(region, at)
            if serial and serial & _LOW == low and site:
                call = Call(
                    begun_ns=begun,
                    ended_ns=ended,
                    group=group,
                    site=self.text(site),
                    root=-1 if root == exchanges.NO_ROOT else root,
                    parts=self._parts.of(serial),
                )
                found.append((serial, call))
        return [call for _, call in sorted(found, key=lambda item: item[0])]


METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "reduce", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall",
    "alltoall_base", "barrier", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "reduce_scatter_single", "reduce_scatter_single_coalesced",
)  # fmt: skip
"""Methods of ProcessGroup that are collectives; a torch may have some of them only."""
