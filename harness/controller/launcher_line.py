"""The launcher's line to the controller: JSON lines on a pipe, whose end means it is gone."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable

import msgspec

log = logging.getLogger("harness.controller")


class AgentGone(msgspec.Struct, tag="agent_gone", tag_field="type", frozen=True):
    """The launcher has seen its node's agent die. `pid`, when given, settles which process."""

    node_rank: int
    why: str
    pid: int = 0


async def launcher_lines(fd: int) -> AsyncIterator[AgentGone]:
    """What the launcher says on `fd`, until it is gone."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def hand_over(line: bytes | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            loop.call_soon_threadsafe(lines.put_nowait, line)

    # A thread, since a terminal, a file or /dev/null as stdin cannot be waited for otherwise.
    threading.Thread(target=_read, args=(fd, hand_over), daemon=True).start()
    while (line := await lines.get()) is not None:
        try:
            yield msgspec.json.decode(line, type=AgentGone)
        except msgspec.MsgspecError as error:
            log.error("left out a line from the launcher: %s: %r", error, line[:200])


def _read(fd: int, hand_over: Callable[[bytes | None], None]) -> None:
    rest = b""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            hand_over(None)
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                hand_over(line)
