"""The stacks of this process as it sees them itself, for an agent that asks on the link; what else
it asks is passed on.

The heartbeat thread answers: it runs while the main thread waits in a collective or works in
Python, and holds the interpreter's lock meanwhile, so that no frame changes under its eyes. Where
it cannot run, or the process is stopped, nobody answers and the agent looks from outside.
"""

import _thread
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from types import FrameType

from harness.worker.link import Link

ASK = b"stack"
_MOST_FRAMES = 100
_MOST_CHARACTERS = 40_000
_MOST_BYTES = 60_000


class Answering:
    """Made by the main thread; `rest` is for the heartbeat thread alone."""

    def __init__(
        self, descriptor: int, link: Link, on_other: Callable[[bytes], None] = lambda said: None
    ) -> None:
        """`on_other` is given what an agent says that is no question for stacks."""
        self._on_other = on_other
        self._descriptor = descriptor
        self._socket = os.fstat(descriptor).st_ino
        self._link = link
        self._main = _thread.get_ident()
        self._poll: select.poll | None = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def rest(self, seconds: float) -> None:
        """Sleep for `seconds`, or less when a stack was asked for. Never raises."""
        if self._poll is None:
            time.sleep(seconds)
            return
        said = b""
        with contextlib.suppress(OSError):
            if not self._poll.poll(seconds * 1000):
                return
            # A script may have closed all that it did not open, and have the number for its own.
            if os.fstat(self._descriptor).st_ino == self._socket:
                said = os.read(self._descriptor, _MOST_BYTES)
        if said == ASK:
            self._link.say("Stack", text=text(self._main))
        elif said:
            self._on_other(said)
        else:
            self._poll = None  # closed by somebody: there is nobody to answer to


def text(main: int) -> str:
    """The stacks of all other threads as faulthandler writes them, thread `main` last."""
    frames = sys._current_frames()
    own = _thread.get_ident()
    shown = _shown(main, frames.get(main))
    for thread, frame in frames.items():
        if thread not in (main, own) and len(shown) < _MOST_CHARACTERS:
            shown = f"{_shown(thread, frame)}\n{shown}"
    return shown


def _shown(thread: int, frame: FrameType | None) -> str:
    lines = [f"Thread 0x{thread:016x} (most recent call first):"]
    while frame is not None and len(lines) <= _MOST_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
