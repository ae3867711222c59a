"""The newest log lines of a run, folded, read by a thread of its own."""

import re
import threading
from collections import deque
from pathlib import Path

from harness.ranklogs import LogLine, LogTail, attempts, offset_of_last, rank_files, read_lines

MOST_LINES = 2000
FIRST_LINES = 200
_INTERVAL = 0.5


class LogWatch:
    """Keeps the last lines of the newest attempt, following new attempts as they come."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.version = 0
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._tail: LogTail | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def lines(self, matches: re.Pattern[str] | None = None) -> list[LogLine]:
        """What is kept, oldest first; with `matches`, only the lines it is found in."""
        with self._lock:
            kept = list(self._lines)
        return kept if matches is None else [line for line in kept if matches.search(line.text)]

    def last_of_rank(self, rank: int, count: int) -> tuple[str, ...]:
        """The last lines of one rank, from its own file."""
        known = attempts(self.run_dir)
        path = rank_files(self.run_dir, known[-1]).get(rank) if known else None
        if path is None:
            return ()
        try:
            return tuple(read_lines(path, offset_of_last(path, count)))
        except OSError:
            return ()

    def poll(self) -> None:
        """One round of reading."""
        known = attempts(self.run_dir)
        new: list[LogLine] = []
        if self._tail is None and known:
            self._tail = LogTail(self.run_dir, known[-1], last=FIRST_LINES)
        while self._tail is not None and known and self._tail.attempt < known[-1]:
            new += self._tail.poll(final=True)
            following = min(a for a in known if a > self._tail.attempt)
            self._tail = LogTail(self.run_dir, following)
        if self._tail is not None:
            new += self._tail.poll()
        if new:
            with self._lock:
                self._lines.extend(new)
                self.version += 1

    def _run(self) -> None:
        while True:
            self.poll()
            if self._stop.wait(_INTERVAL):
                return
