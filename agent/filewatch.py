"""The process that looks at checkpoint files below watched folders, beside the training.

It is started by the agent and lives as long: JSON lines come on stdin (`begin`, `settle`, `end` by
closing it), JSON lines go to stdout (`flaw`, `mended`, `say`, `settled`). It gives way to
the ranks, reads at most so many bytes a second, and each version of a file once.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import select
import signal
import sys
import time
from collections.abc import Generator
from dataclasses import asdict
from typing import Any

from harness.agent.inotify import Change, Unwatchable, Watch
from harness.agent.savedfiles import SavedFiles

BYTES_A_SECOND = 64 << 20
_BURST = 8 << 20
_MEMORY = 2 << 30
_NICE = 10
"""A tenth of what a rank gets where both want a core. Not the idle class: a restart waits for the
last look at the files, on a machine that may be busy with something else."""
_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IO_LAST = 2 << 13 | 7


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--agent", type=int, required=True)
    parser.add_argument("--since", type=float, required=True)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    be_the_last(options.agent)
    with contextlib.suppress(BrokenPipeError):  # the agent is gone
        Watcher(options.folders, options.since, elastic=options.elastic).run()
    return 0


def be_the_last(agent: int) -> None:
    """Give way to others, take little memory, and live no longer than the agent."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        sys.exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write(str(_NICE))  # where each session has its own share of the CPU
    if (call := _IOPRIO_SET.get(platform.machine())) is not None:
        libc.syscall(call, 1, 0, _IO_LAST)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


class Watcher:
    """All watched folders. One thread, one place to wait.

    What was written after `since`, wall clock, is new: ranks may be quicker than this process.
    """

    def __init__(self, folders: list[str], since: float, *, elastic: bool) -> None:
        self._since = since
        self._roots: dict[str, SavedFiles] = {}
        self._absent = list(folders)
        self._elastic = elastic
        self._watch: Watch | None = None
        self._began: dict[str, Any] | None = None
        self._pending = b""
        self._allowed, self._filled = float(_BURST), time.monotonic()
        self._reading: dict[str, Generator[int, None, None]] = {}

    def run(self) -> None:
        """Until stdin ends."""
        try:
            self._watch = Watch()
        except Unwatchable as error:
            _send(say=f"checkpoint files are not watched: {error}")
        self._look_for_folders()
        while True:
            busy = self._read_some()
            ready = self._wait(0.0 if busy else self._pause())
            self._take_changes()
            if sys.stdin.fileno() in ready and not self._hear():
                return
            now = time.monotonic()
            for files in self._roots.values():
                files.look(now)
            self._look_for_folders()

    def _wait(self, seconds: float) -> list[int]:
        descriptors = [sys.stdin.fileno()]
        if self._watch is not None:
            descriptors.append(self._watch.descriptor)
        ready, _, _ = select.select(descriptors, [], [], seconds)
        return ready

    def _pause(self) -> float:
        """Until something is due."""
        due = [at for files in self._roots.values() if (at := files.next_due()) is not None]
        return max(0.0, min([_LOOK_SECONDS, *(at - time.monotonic() for at in due)]))

    # --- what is said to it --------------------------------------------------------------------

    def _hear(self) -> bool:
        """Read stdin; false at its end."""
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "begin" in said:
                self._began = said
                for files in self._roots.values():
                    files.begin(said["begin"], said["world_size"])
            if "settle" in said:
                self._settle(said["settle"])
        return bool(data)

    def _settle(self, number: int) -> None:
        self._look_for_folders()
        self._take_changes()
        now = time.monotonic()
        for files in self._roots.values():
            files.settle(now)
        _send(settled=number)

    # --- folders and their changes -------------------------------------------------------------

    def _look_for_folders(self) -> None:
        for folder in [folder for folder in self._absent if os.path.lexists(folder)]:
            self._absent.remove(folder)
            if not os.path.isdir(folder):
                _send(say=f"{folder} is not watched: it is a file, not a directory")
                continue
            files = SavedFiles(
                folder,
                lambda flaw: _send(flaw=asdict(flaw)),
                lambda path: _send(mended=path),
            )
            files.elastic = self._elastic
            if self._began is not None:
                files.begin(self._began["begin"], self._began["world_size"])
            self._roots[folder] = files
            self._reading[folder] = files.readings()
            present = self._enter(folder)
            files.found(present, time.monotonic(), time.time(), self._since)

    def _enter(self, folder: str) -> list[str]:
        """Watch `folder` and all below it; the files that are there."""
        found: list[str] = []
        todo = [folder]
        while todo and self._watch is not None:
            at = todo.pop()
            try:
                if not self._watch.add(at):
                    continue
                with os.scandir(at) as entries:
                    for entry in entries:
                        below = entry.is_dir(follow_symlinks=False)
                        (todo if below else found).append(entry.path)
            except Unwatchable as error:
                _send(say=f"{at} is not watched: {error}")
                return found
            except OSError:
                continue
        return found

    def _take_changes(self) -> None:
        if self._watch is None:
            return
        for change in self._watch.changes():
            if change.what == "lost":
                self._look_at_all()
                continue
            files = self._files_of(change.path)
            if files is not None:
                self._take(files, change)

    def _take(self, files: SavedFiles, change: Change) -> None:
        now = time.monotonic()
        if change.what == "went":
            files.went(change.path)
            if change.path == files.root:
                self._absent.append(files.root)
                del self._roots[files.root], self._reading[files.root]
        elif change.folder:
            for path in self._enter(change.path):
                files.closed(path, now)
        elif change.what != "made" or _complete_at_once(change.path):
            files.closed(change.path, now)

    def _look_at_all(self) -> None:
        for root, files in self._roots.items():
            for path in self._enter(root):
                files.closed(path, time.monotonic())

    def _files_of(self, path: str) -> SavedFiles | None:
        below = [root for root in self._roots if path == root or path.startswith(root + os.sep)]
        return self._roots[max(below, key=len)] if below else None

    # --- reading -------------------------------------------------------------------------------

    def _read_some(self) -> bool:
        """A piece of what is unread, if the budget allows; whether there may be more at once."""
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + (now - self._filled) * BYTES_A_SECOND)
        self._filled = now
        if self._allowed <= 0:
            time.sleep(min(-self._allowed / BYTES_A_SECOND, 0.1))
            return True
        for reading in self._reading.values():
            if taken := next(reading):
                self._allowed -= taken
                return True
        return False


def _complete_at_once(path: str) -> bool:
    """A link: what is there under a new name was whole before."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return os.path.islink(path) or status.st_nlink > 1


def _send(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
