"""The processes of one launch of a system, and the end of all that they have left anywhere."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.processes import adopt_orphans, kill_descendants

_SECONDS_TO_LEAVE = 5.0
_LOOK_SECONDS = 0.05
Command = tuple[Sequence[str], Mapping[str, str]]
"""What is started, and what it has in its environment besides ours."""


def end_on_sigterm() -> None:
    """Leave as with Ctrl-C, so that what has been launched is ended and its folder removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextlib.contextmanager
def launched(
    commands: Sequence[Command], folder: Path
) -> "Iterator[Sequence[subprocess.Popen[bytes]]]":
    """Start all in `folder`, their output in its file `output`, temporary files in its `tmp`.

    Afterwards nothing runs that is of them, whoever became its parent: whom they orphan comes to
    this process, and all below it is ended, kindly first. So there is one launch at a time.
    """
    adopt_orphans()
    (folder / "tmp").mkdir()
    ours = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    started: list[subprocess.Popen[bytes]] = []
    try:
        with open(folder / "output", "wb") as output:
            for command, more in commands:
                started.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env={**ours, **more},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        _end(started)


def _end(started: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in started:
        process.terminate()
    until = time.monotonic() + _SECONDS_TO_LEAVE
    while any(process.poll() is None for process in started) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    kill_descendants(lambda: _reap(started))


def _reap(started: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Collect exit states: first of those that have somebody to be told, then of the adopted."""
    for process in started:
        process.poll()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
