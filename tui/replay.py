"""A run that is over, or still going on, once more: at any speed, forwards and backwards.

A thread folds the whole journal and keeps the model of many moments as bytes; a seek takes the one
before and folds on from there. The clock is the run's own, so a hang is as long as it was.
"""

import bisect
import pickle
import re
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from harness import codec, journal
from harness.errors import HarnessError
from harness.events import IncidentOpened, Record
from harness.tui.feed import Feed
from harness.tui.model import Model
from harness.tui.wording import duration_text

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 60.0)
_TIME = re.compile(r"([+-]?)(\d{1,6}(?::\d{1,2}){0,2})")
_TICK_SECONDS = 0.1
_KEEP_SECONDS = 0.15
"""So much folding between two kept models: what a seek takes at most, beside loading one."""
_MOST_BYTES = 256 << 20
"""Of all kept models."""


class Tape:
    """Where each record of a journal stands, and the models of some moments. Records are read again
    when they are needed: a long run does not fit into memory as objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.times = array("q")
        """Wall clock of each record, never falling: clocks of nodes differ a little."""
        self.incidents: list[int] = []
        """Wall clock of each incident."""
        self._offsets = array("q")
        self._kept: list[tuple[int, bytes]] = [(0, pickle.dumps(Model()))]
        self._model = Model()
        self._spent = 0.0
        self._every = _KEEP_SECONDS

    def read(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Read the journal to its end, or until `stop`. Damaged lines are left out and said."""
        journal.read_header(self.path)
        with self.path.open("rb") as file:
            offset = len(file.readline())
        reader = journal.LineReader(self.path, offset=offset)
        number = 1
        try:
            while lines := reader.read():
                for line in lines:
                    number += 1
                    try:
                        self._add(codec.decode(line), offset)
                    except codec.CodecError as error:
                        say(f"{self.path.name}:{number}: {error}; left out")
                    offset += len(line) + 1
                if stop.is_set():
                    return
        finally:
            reader.close()

    def _add(self, record: Record, offset: int) -> None:
        begun = time.thread_time()
        at_ns = max(record.stamp.wall_ns, self.times[-1] if self.times else 0)
        self._offsets.append(offset)
        self.times.append(at_ns)
        if isinstance(record.event, IncidentOpened):
            self.incidents.append(at_ns)
        self._model.apply(record)
        self._spent += time.thread_time() - begun
        if self._spent > self._every:
            self._spent = 0.0
            kept = [*self._kept, (len(self.times), pickle.dumps(self._model, protocol=5))]
            if sum(len(raw) for _, raw in kept) > _MOST_BYTES:
                del kept[1::2]
                self._every *= 2
            self._kept = kept  # in one go: another thread looks things up in it

    @property
    def first_ns(self) -> int:
        return self.times[0] if self.times else 0

    @property
    def last_ns(self) -> int:
        return self.times[-1] if self.times else 0

    def count_at(self, at_ns: int) -> int:
        """How many records there were by then."""
        return bisect.bisect_right(self.times, at_ns)

    def kept_before(self, count: int) -> int:
        """Up to which record, at most `count`, there is a model ready."""
        return self._nearest(count)[0]

    def model_of(self, count: int) -> Model:
        """The model after the first `count` records."""
        begun, raw = self._nearest(count)
        model: Model = pickle.loads(raw)
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


class ReplayFeed(Feed):
    """Shows the journal at `path` as it was at `now_ns`, which the keys move."""

    def __init__(self, path: Path) -> None:
        super().__init__(self._play, source=str(path))
        self.path = path
        self.tape = Tape(path)
        self.speed = 1.0
        self.playing = True
        self.loaded = False
        self.shown = 0
        """Records that the model holds."""
        self._now_ns = 0
        self._wake = threading.Event()

    @property
    def now_ns(self) -> int:
        return self._now_ns

    @property
    def holding(self) -> bool:
        return not self.playing

    def stop(self) -> None:
        self._wake.set()
        super().stop()

    def hold(self, holding: bool) -> None:
        self.playing = not holding
        if not holding and self._now_ns >= self.tape.last_ns:
            self.seek(self.tape.first_ns)
        self._label()

    def faster(self, steps: int) -> None:
        """Take the next speed up or down."""
        at = SPEEDS.index(self.speed) + steps
        self.speed = SPEEDS[max(0, min(at, len(SPEEDS) - 1))]
        self._label()

    def skip(self, seconds: float) -> None:
        self.seek(self._now_ns + int(seconds * 1e9))

    def frame(self, records: int) -> None:
        """Go to the next or the previous moment at which anything came, and stay there."""
        self.playing = False
        times, now_ns = self.tape.times, self._now_ns
        if records > 0:
            at = bisect.bisect_right(times, now_ns)
        else:
            at = bisect.bisect_left(times, now_ns) - 1
        if times:
            self.seek(times[max(0, min(at, len(times) - 1))])

    def incident(self, step: int) -> bool:
        """Go to the next or the previous incident; whether there is one."""
        found = self.tape.incidents
        later = [at_ns for at_ns in found if at_ns > self._now_ns]
        earlier = [at_ns for at_ns in found if at_ns < self._now_ns]
        target = later[:1] if step > 0 else earlier[-1:]
        if target:
            self.playing = False
            self.seek(target[0])
        return bool(target)

    def seek(self, at_ns: int) -> None:
        """Show the moment `at_ns`, as far as the journal is read."""
        tape = self.tape
        with self.lock:
            self._now_ns = max(tape.first_ns, min(at_ns, tape.last_ns))
            count = tape.count_at(self._now_ns)
            if count < self.shown or tape.kept_before(count) > self.shown:
                self.model = tape.model_of(count)
            else:
                tape.forward(self.model, self.shown, count)
            self.shown = self.received = count
        self._label()

    def time_of(self, text: str) -> int | None:
        """Wall clock of `00:12:30` or `750` after the start, `+10` or `-10` from now; None when it
        is no time."""
        match = _TIME.fullmatch(text.strip())
        if match is None:
            return None
        seconds = 0
        for part in match[2].split(":"):
            seconds = seconds * 60 + int(part)
        from_ns = self._now_ns if match[1] else self.tape.first_ns
        return from_ns + (-seconds if match[1] == "-" else seconds) * 1_000_000_000

    def clock_text(self) -> str:
        """`00:00:41 of 00:02:10`, since the first record."""
        first_ns = self.tape.first_ns
        now, whole = (self._now_ns - first_ns) / 1e9, (self.tape.last_ns - first_ns) / 1e9
        return f"{duration_text(now)} of {duration_text(whole)}"

    def _label(self) -> None:
        word = "REPLAY" if self.playing else "PAUSED"
        if self._now_ns >= self.tape.last_ns and self.loaded:
            word = "END"
        self.label = f"{word} x{self.speed:g} {self.clock_text()}"
        self.version += 1

    def _play(self, _: Feed) -> None:
        reading = threading.Thread(target=self._read, name="tape", daemon=True)
        reading.start()
        before = time.monotonic()
        while not self._wake.wait(_TICK_SECONDS):
            now = time.monotonic()
            passed, before = now - before, now
            if not self.tape.times:
                continue
            if self._now_ns == 0:
                self.seek(self.tape.first_ns)
            elif self.playing and self._now_ns < self.tape.last_ns:
                self.seek(self._now_ns + int(passed * self.speed * 1e9))

    def _read(self) -> None:
        try:
            self.tape.read(self.stop_asked, self._note)
        except HarnessError as error:
            self._note(error.message)
        except Exception as error:  # the border of the thread
            self._note(f"{type(error).__name__}: {error}")
        self.loaded = True
        self._label()

    def _note(self, note: str) -> None:
        self.trouble = " ".join(note.split())
        self.version += 1
