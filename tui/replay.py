"""A run that is over, or still going on, once more: at any speed, forwards and backwards.

A thread folds the whole journal and keeps the model of many moments as bytes; a seek takes the one
before and folds on from there. The clock is the run's own, so a hang is as long as it was.
"""

import bisect
import contextlib
import re
import threading
import time
from pathlib import Path

from harness.errors import HarnessError
from harness.tui.feed import Feed
from harness.tui.tape import Tape
from harness.tui.wording import duration_text

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 60.0)
_TIME = re.compile(r"([+-]?)(\d{1,6}(?::\d{1,2}){0,2})")
_TICK_SECONDS = 0.1


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
        self._wanted_ns: int | None = None
        """The moment to go to as soon as the journal is read so far."""
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
        if not holding and self.loaded and self._now_ns >= self.tape.last_ns:
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
        found = self.tape.incidents_of_all()
        later = [at_ns for at_ns in found if at_ns > self._now_ns]
        earlier = [at_ns for at_ns in found if at_ns < self._now_ns]
        target = later[:1] if step > 0 else earlier[-1:]
        if target:
            self.playing = False
            self.seek(target[0])
        return bool(target)

    def seek(self, at_ns: int) -> None:
        """Show the moment `at_ns`; one that is not read yet as soon as it is."""
        tape = self.tape
        at_ns = min(at_ns, tape.end_ns)
        if at_ns > tape.last_ns and not self.loaded:
            self._wanted_ns = at_ns
            self._label()
        else:
            self._wanted_ns = None
            self._go(at_ns)

    def _go(self, at_ns: int) -> None:
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
        end_ns = self.tape.end_ns if self.tape.times else first_ns
        now, whole = (self._now_ns - first_ns) / 1e9, (end_ns - first_ns) / 1e9
        return f"{duration_text(now)} of {duration_text(whole)}"

    def _label(self) -> None:
        word = "REPLAY" if self.playing else "PAUSED"
        if self._now_ns >= self.tape.last_ns and self.loaded:
            word = "END"
        if self._wanted_ns is not None:
            word = f"READING {self.tape.share:.0%}"
        self.label = f"{word} x{self.speed:g} {self.clock_text()}"
        self.version += 1

    def _play(self, _: Feed) -> None:
        for name, work in (("tape", self._read), ("search", self._search)):
            threading.Thread(target=work, name=name, daemon=True).start()
        before = time.monotonic()
        while not self._wake.wait(_TICK_SECONDS):
            now = time.monotonic()
            passed, before = now - before, now
            if not self.tape.times:
                continue
            if self._now_ns == 0:
                self._go(self.tape.first_ns)
            wanted_ns = self._wanted_ns
            if wanted_ns is not None:
                if self.loaded or wanted_ns <= self.tape.last_ns:
                    self.seek(wanted_ns)
                else:
                    self._label()
            elif self.playing and self._now_ns < self.tape.last_ns:
                self._go(self._now_ns + int(passed * self.speed * 1e9))

    def _read(self) -> None:
        try:
            self.tape.read(self.stop_asked, self._note)
        except HarnessError as error:
            self._note(error.message)
        except Exception as error:  # the border of the thread
            self._note(f"{type(error).__name__}: {error}")
        self.loaded = True
        self._label()

    def _search(self) -> None:
        with contextlib.suppress(OSError):  # whoever reads it says so
            self.tape.search(self.stop_asked)

    def _note(self, note: str) -> None:
        self.trouble = " ".join(note.split())
        self.version += 1
