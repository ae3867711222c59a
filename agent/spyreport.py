"""What the tools that take stacks write, read: the main thread's frames, innermost first."""

import json
import os
import re
from collections.abc import Iterable
from typing import Any

from harness.incidents import Where
from harness.sightings import Frame, ThreadTaken
from harness.worker import assignment
from harness.worker.frames import innermost_user

MOST_FRAMES = 64
MOST_THREADS = 4
_GUEST = os.path.dirname(assignment.__file__) + os.sep
_BOOTSTRAP = f"{_GUEST}bootstrap.py"
_VARIABLE_LIMIT = 120
_FAULTHANDLER_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_PYSTACK_FRAME = re.compile(
    r'^\s+\(Python\) File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$'
)


class NoStack(Exception):
    """No stack could be had; the text says in words why."""


def main_thread(report: bytes, pid: int) -> tuple[tuple[Frame, ...], tuple[tuple[str, ...], ...]]:
    """Frames of the main thread in a py-spy report, and their local variables as `name = value`
    where the report has them. Raises NoStack."""
    try:
        threads = json.loads(report)
    except ValueError:
        raise NoStack("py-spy's report was cut off") from None
    # A thread state that another thread is just making carries the ids of the main one, and no
    # frames yet; of a process that was stopped then it stays so.
    framed = [thread for thread in threads if thread["frames"]]
    main = next((thread for thread in framed if thread.get("os_thread_id") == pid), None)
    if main is None:
        main = next((t for t in framed if t.get("thread_name") == "MainThread"), None)
    if main is None:
        raise NoStack("py-spy saw no Python frame of the main thread")
    kept = [
        (
            Frame(file=frame["filename"], line=int(frame["line"]), function=frame["name"]),
            _variables(frame),
        )
        for frame in main["frames"]
    ]
    kept = kept[: _end(frame for frame, _ in kept)]
    kept = [(frame, variables) for frame, variables in kept if not _is_ours(frame)]
    variables = tuple(variables for _, variables in kept)
    return tuple(frame for frame, _ in kept), variables if any(variables) else ()


def other_threads(report: bytes, pid: int) -> tuple[ThreadTaken, ...]:
    """Threads in a py-spy report besides the main one; at most `MOST_THREADS`, those that stand
    in the user's code first."""
    by_user: list[ThreadTaken] = []
    by_others: list[ThreadTaken] = []
    for thread in json.loads(report):
        if thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread":
            continue
        frames = [
            Frame(file=frame["filename"], line=int(frame["line"]), function=frame["name"])
            for frame in thread["frames"]
        ]
        if not frames or any(map(_is_ours, frames)):
            continue
        name = thread.get("thread_name") or str(thread.get("os_thread_id"))
        where = user_frame(tuple(frames))
        found, inner = by_others if where is None else by_user, frames[0]
        inmost = Where(file=inner.file, line=inner.line, function=inner.function)
        found.append(ThreadTaken(name=name, where=where or inmost))
    return tuple([*by_user, *by_others][:MOST_THREADS])


def _variables(frame: dict[str, Any]) -> tuple[str, ...]:
    found = [f"{local.get('name')} = {local.get('repr')}" for local in frame.get("locals") or ()]
    return tuple(text[:_VARIABLE_LIMIT] for text in found)


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread in a faulthandler text.

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
    return without_ours(frames)


def from_pystack(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread in pystack's text, which names it first and its outermost frame
    before the inner ones."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if line.startswith("Traceback for thread") and frames:
            break
        found = _PYSTACK_FRAME.match(line)
        if found:
            frames.append(
                Frame(file=found["file"], line=int(found["line"]), function=found["name"])
            )
    return without_ours(frames[::-1])


def without_ours(frames: list[Frame]) -> tuple[Frame, ...]:
    """Without what called the user's program, and without the hooks that look on."""
    return tuple(frame for frame in frames[: _end(frames)] if not _is_ours(frame))


def _end(frames: Iterable[Frame]) -> int | None:
    """Where the user's program ends; None when it was not ours to start."""
    for at, frame in enumerate(frames):
        if frame.file == _BOOTSTRAP and frame.function == "_execute":
            return at
    return None


def _is_ours(frame: Frame) -> bool:
    return frame.file.startswith(_GUEST)


def user_frame(frames: tuple[Frame, ...]) -> Where | None:
    """Where the user's own code stands in a stack."""
    found = innermost_user([(frame.file, frame) for frame in frames])
    if found is None:
        return None
    return Where(file=found.file, line=found.line, function=found.function)
