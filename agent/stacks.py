"""The main thread's stack of a process: py-spy's report, or a faulthandler text."""

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from harness.events import Frame
from harness.incidents import Where
from harness.worker import bootstrap
from harness.worker.frames import innermost_user

_FAULTHANDLER_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


class NoStack(Exception):
    """No stack could be had; the text says in words why."""


@cache
def py_spy_path() -> str | None:
    """The py-spy beside this interpreter, or the one in PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def spy(pid: int, seconds: float) -> bytes:
    """py-spy's JSON report of `pid`, without stopping it: works on stopped processes too, and
    while a C call holds the interpreter lock. Raises NoStack. Blocks."""
    program = py_spy_path()
    if program is None:
        raise NoStack("py-spy is not installed")
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            capture_output=True,
            timeout=max(seconds, 0.1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoStack(f"py-spy took longer than {seconds:.1f} s") from None
    except OSError as error:
        raise NoStack(f"py-spy could not be started: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NoStack(f"py-spy: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def main_thread(report: bytes, pid: int) -> tuple[Frame, ...]:
    """Frames of the main thread in a py-spy report, innermost first. Raises NoStack."""
    try:
        threads = json.loads(report)
    except ValueError:
        raise NoStack("py-spy's report was cut off") from None
    main = next((thread for thread in threads if thread.get("os_thread_id") == pid), None)
    if main is None:
        main = next((t for t in threads if t.get("thread_name") == "MainThread"), None)
    if main is None or not main["frames"]:
        raise NoStack("py-spy saw no Python frame of the main thread")
    frames = [
        Frame(file=frame["filename"], line=int(frame["line"]), function=frame["name"])
        for frame in main["frames"]
    ]
    return tuple(_without_bootstrap(frames))


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread in a faulthandler text, innermost first.

    faulthandler writes the thread of the signal as `Current thread` and the oldest, which is the
    main one, last.
    """
    frames: list[Frame] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ", "Stack ")):
            frames.clear()
        found = _FAULTHANDLER_FRAME.match(line)
        if found:
            frames.append(
                Frame(file=found["file"], line=int(found["line"]), function=found["name"])
            )
    return tuple(_without_bootstrap(frames))


def _without_bootstrap(frames: list[Frame]) -> list[Frame]:
    """Without what called the user's program."""
    for at, frame in enumerate(frames):
        if frame.file == bootstrap.__file__ and frame.function == "_execute":
            return frames[:at]
    return frames


def user_frame(frames: tuple[Frame, ...]) -> Where | None:
    """Where the user's own code stands in a stack."""
    found = innermost_user([(frame.file, frame) for frame in frames])
    if found is None:
        return None
    return Where(file=found.file, line=found.line, function=found.function)
