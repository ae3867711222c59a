"""The journal of a run as a tape: what stands where, and the models of some moments.

All of it is read once, in order, while somebody looks already; what is known without that, where it
ends and when its incidents were, is looked up ahead.
"""

import bisect
import pickle
import threading
import time
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path

from harness import codec, journal
from harness.events import IncidentOpened
from harness.tui.model import Model

_KEEP_SECONDS = 0.1
"""So much reading between two kept models: what a seek takes at most, beside loading one."""
_KEEPING_SHARE = 0.25
"""Of the time of reading that keeping models may take: those of many thousands of ranks are
large."""
_MOST_BYTES = 64 << 20
"""Of all kept models; they are packed to about a tenth."""
_TAIL_BYTES = 1 << 20
_LOOKED_AT = 4 << 20
_AN_INCIDENT = b'"type":"IncidentOpened"'


class Tape:
    """Where each record of a journal stands, and the models of some moments. Records are read again
    when they are needed: a long run does not fit into memory as objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.times = array("q")
        """Wall clock of each record, never falling: clocks of nodes differ a little."""
        self.incidents: list[int] = []
        """Wall clock of each incident."""
        self.ahead: list[int] = []
        """The same of those that were found without reading what is before them."""
        self.searched = False
        """Whether all of them were."""
        self.share = 0.0
        """How much of the journal is read, 0 to 1."""
        self._end_ns = 0
        self._offsets = array("q")
        self._kept: list[tuple[int, bytes]] = [(0, _packed(Model()))]
        self._model = Model()
        self._spent = 0.0
        self._every = _KEEP_SECONDS

    def read(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Read the journal to its end, or until `stop`. Damaged lines are left out and said."""
        journal.read_header(self.path)
        self.find_end()
        size = max(1, self.path.stat().st_size)
        with self.path.open("rb") as file:
            offset = len(file.readline())
        reader = journal.LineReader(self.path, offset=offset)
        number = 1
        try:
            while lines := reader.read():
                for line in lines:
                    number += 1
                    try:
                        self._add(line, offset)
                    except codec.CodecError as error:
                        say(f"{self.path.name}:{number}: {error}; left out")
                    offset += len(line) + 1
                self.share = min(1.0, offset / size)
                if stop.is_set():
                    return
        finally:
            reader.close()

    def find_end(self) -> None:
        """Learn when the journal ends, from its last lines."""
        self._end_ns = _newest_ns(self.path)

    def search(self, stop: threading.Event) -> None:
        """Find the incidents, without reading what else there is."""
        found = []
        with self.path.open("rb") as file:
            rest = b""
            while not stop.is_set() and (chunk := file.read(_LOOKED_AT)):
                *lines, rest = (rest + chunk).rsplit(b"\n", maxsplit=1)
                if lines and _AN_INCIDENT in lines[0]:
                    found += [_wall_ns(line) for line in lines[0].split(b"\n")
                              if _AN_INCIDENT in line]  # fmt: skip
                    self.ahead = [at_ns for at_ns in found if at_ns]
        self.searched = True

    def _add(self, line: bytes, offset: int) -> None:
        begun = time.thread_time()
        record = codec.decode(line)
        at_ns = max(record.stamp.wall_ns, self.times[-1] if self.times else 0)
        self._offsets.append(offset)
        self.times.append(at_ns)
        if isinstance(record.event, IncidentOpened):
            self.incidents.append(at_ns)
        self._model.apply(record)
        self._spent += time.thread_time() - begun
        if self._spent > self._every:
            self._spent = 0.0
            self._keep()

    def _keep(self) -> None:
        begun = time.thread_time()
        kept = [*self._kept, (len(self.times), _packed(self._model))]
        self._kept = kept  # in one go: another thread looks things up in it
        if self.kept_bytes > _MOST_BYTES:
            self._kept = kept[::2]
            self._every *= 2
        self._every = max(self._every, (time.thread_time() - begun) / _KEEPING_SHARE)

    @property
    def first_ns(self) -> int:
        return self.times[0] if self.times else 0

    @property
    def last_ns(self) -> int:
        return self.times[-1] if self.times else 0

    @property
    def end_ns(self) -> int:
        """When the journal ends, as far as it reaches; the rest may have to be read first."""
        return max(self._end_ns, self.last_ns)

    def incidents_of_all(self) -> list[int]:
        """Of what is read and of what is not, in order."""
        last_ns = self.last_ns
        return [*self.incidents, *(at_ns for at_ns in self.ahead if at_ns > last_ns)]

    @property
    def kept_bytes(self) -> int:
        """What all kept models take."""
        return sum(len(raw) for _, raw in self._kept)

    def count_at(self, at_ns: int) -> int:
        """How many records there were by then."""
        return bisect.bisect_right(self.times, at_ns)

    def kept_before(self, count: int) -> int:
        """Up to which record, at most `count`, there is a model ready."""
        return self._nearest(count)[0]

    def model_of(self, count: int) -> Model:
        """The model after the first `count` records."""
        begun, raw = self._nearest(count)
        model: Model = pickle.loads(zlib.decompress(raw))
        self.forward(model, begun, count)
        return model

    def forward(self, model: Model, begun: int, count: int) -> None:
        """Take `model`, which holds the first `begun` records, on to `count` of them."""
        if begun >= count:
            return
        reader = journal.LineReader(self.path, offset=self._offsets[begun])
        place = self._offsets[begun]
        at = begun
        try:
            while at < count and (lines := reader.read()):
                for line in lines:
                    if at < count and place == self._offsets[at]:
                        model.apply(codec.decode(line))
                        at += 1
                    place += len(line) + 1
        finally:
            reader.close()

    def _nearest(self, count: int) -> tuple[int, bytes]:
        kept = self._kept
        return kept[bisect.bisect_right(kept, count, key=lambda each: each[0]) - 1]


def _packed(model: Model) -> bytes:
    return zlib.compress(pickle.dumps(model, protocol=5), 1)


def _wall_ns(line: bytes) -> int:
    """0 for a line that is not a record."""
    try:
        return codec.decode(line).stamp.wall_ns
    except codec.CodecError:
        return 0


def _newest_ns(path: Path) -> int:
    """When the last whole record was written; 0 when that cannot be seen near the end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    return next((at_ns for line in reversed(lines) if (at_ns := _wall_ns(line))), 0)
