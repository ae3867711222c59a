"""What the ranks print, on the agent's stdout; messages for the user, on its stderr.

A thread of its own follows the log files, so that a terminal that takes nothing more can never
stop the supervision of the ranks.
"""

import os
import queue
import threading
import time
from pathlib import Path

from harness.agent.lines import Folder, LineCutter
from harness.wire.waiting import until_beat

_TICK_SECONDS, _IDLE_TICK_SECONDS = 0.04, 0.25
"""Between two looks at the logs; the latter once nothing has come for a while."""
_IDLE_AFTER_SECONDS = 2.0
_CHUNK = 1 << 20
_QUIET_SECONDS = 1.0
"""A line without an end is shown after this long."""


class _Followed:
    def __init__(self, rank: int, descriptor: int) -> None:
        self.rank = rank
        self.descriptor = descriptor
        self.cutter = LineCutter()
        self.grew = time.monotonic()
        self.ended = False


class Console:
    """Follows any number of log files. All methods may be called from the agent's thread."""

    def __init__(self, voices: int, *, prefixed: bool, out: int = 1, err: int = 2) -> None:
        self._out: int | None = out
        self._err: int | None = err
        self._folder = Folder(voices, prefixed=prefixed)
        self._followed: list[_Followed] = []
        self._asked: queue.SimpleQueue[tuple[str, int, str]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def follow(self, rank: int, log: Path) -> None:
        """Show what is appended to `log` from now on as lines of `rank`."""
        self._asked.put(("follow", rank, str(log)))
        self._wake.set()

    def finish(self, rank: int, log: Path) -> None:
        """The rank has ended: show the rest of its file and let go of it."""
        self._asked.put(("finish", rank, str(log)))
        self._wake.set()

    def notice(self, text: str) -> None:
        """Print `text` on stderr, after all lines that were printed before."""
        self._asked.put(("notice", -1, text))
        self._wake.set()

    def close(self, seconds: float = 10.0) -> None:
        """Show everything that is left; waits at most `seconds` for a reader that is slow."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)

    # --- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        paths: dict[str, _Followed] = {}
        while True:
            closing = self._closing.is_set()
            notices = self._take_requests(paths)
            more = self._read_all()
            now = time.monotonic()
            if not more:
                self._show_partial(now)
            done = closing and not more
            self._write(self._folder.due(now, everything=bool(notices) or done))
            for text in notices:
                self._err = _write_all(self._err, text if text.endswith("\n") else f"{text}\n")
            if done and self._asked.empty():
                return
            if not more:
                newest = max((followed.grew for followed in self._followed), default=0.0)
                idle = now - newest > _IDLE_AFTER_SECONDS
                self._wake.wait(until_beat(_IDLE_TICK_SECONDS) if idle else _TICK_SECONDS)
                self._wake.clear()

    def _take_requests(self, paths: dict[str, _Followed]) -> list[str]:
        notices: list[str] = []
        while not self._asked.empty():
            what, rank, text = self._asked.get()
            if what == "notice":
                notices.append(text)
            elif what == "finish" and text in paths:
                paths.pop(text).ended = True
            elif what == "follow":
                try:
                    descriptor = os.open(text, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    continue
                os.lseek(descriptor, 0, os.SEEK_SET)
                paths[text] = _Followed(rank, descriptor)
                self._followed.append(paths[text])
        return notices

    def _read_all(self) -> bool:
        """Read a piece of every file; whether one of them has more."""
        more = False
        now = time.monotonic()
        for followed in list(self._followed):
            ended = followed.ended
            data = os.read(followed.descriptor, _CHUNK)
            for line in followed.cutter.feed(data) if data else ():
                self._folder.add(followed.rank, line, now)
            if data:
                followed.grew = time.monotonic()  # the lines themselves may have taken long
            more = more or len(data) == _CHUNK
            if len(data) < _CHUNK and (ended or self._closing.is_set()):
                for line in followed.cutter.take_rest():
                    self._folder.add(followed.rank, line, now)
                if ended:
                    os.close(followed.descriptor)
                    self._followed.remove(followed)
        return more

    def _show_partial(self, now: float) -> None:
        for followed in self._followed:
            if followed.cutter.has_rest and now - followed.grew >= _QUIET_SECONDS:
                for line in followed.cutter.take_rest():
                    self._folder.add(followed.rank, line, now)

    def _write(self, lines: list[str]) -> None:
        if lines:
            self._out = _write_all(self._out, "\n".join(lines) + "\n")


def _write_all(descriptor: int | None, text: str) -> int | None:
    """Write it all; None once nobody reads there any more."""
    if descriptor is None:
        return None
    data = memoryview(text.encode("utf-8", "replace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(_TICK_SECONDS)  # somebody made the terminal non-blocking
        except OSError:
            return None
    return descriptor
