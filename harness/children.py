"""The launcher's children: started so that none outlives it, watched together with signals.

One thread, one place to wait (`poll`): a child's death, a signal, a word on a pipe.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from harness import processes

# A `-m` would put the working directory first on the path: a user's queue.py beside train.py
# would then take the place of the standard library's in our own processes.
_ENTRY = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
root, sys.argv = sys.argv[1], sys.argv[2:]
if root not in sys.path:
    sys.path.append(root)
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(slots=True)
class Child:
    """A process we started."""

    name: str
    pid: int
    status: int | None = None
    """Exit code, or minus the signal that killed it; None while it lives."""
    stdin: IO[bytes] | None = None

    @property
    def ended_how(self) -> str:
        if self.status is None:
            return "still running"
        if self.status < 0:
            return f"killed by {signal_name(-self.status)}"
        return f"exit code {self.status}"

    def tell(self, line: bytes) -> None:
        """Write `line` to its stdin; a dead child hears nothing."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):
                self.stdin.write(line + b"\n")
                self.stdin.flush()

    def kill(self, number: int) -> None:
        """Send it a signal, unless it is gone."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def interpreter_flags() -> list[str]:
    """The flags this interpreter was given on its command line (-X, -W, -O...)."""
    flags: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word[:2] in ("-X", "-W"):
            flags += [word] if len(word) > 2 else [word, next(words, "")]
            continue
        # -Om harness is -O -m harness; what follows m or c is no flag any more.
        plain = min((word.index(letter) for letter in "mc" if letter in word), default=len(word))
        if plain > 1:
            flags.append(word[:plain])
        if plain < len(word):
            break
    return flags


class Children:
    """All children of this process. One at a time, in the main thread; use it as a context."""

    def __init__(self, *also: int) -> None:
        """`also` are signals to take in besides the usual ones."""
        self._also = also
        self.signals: list[int] = []
        """Signals that came since they were last taken from here."""
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, Any] = {}
        self._wakeup: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> "Children":
        processes.adopt_orphans()
        reader, writer = self._wakeup = socket.socketpair()
        for end in self._wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, self._take_signals)
        numbers: list[int] = [
            signal.SIGCHLD,
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGUSR1,
            signal.SIGQUIT,
        ]
        numbers += [number for number in self._also if number not in numbers]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means what it says
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._handlers[number] = signal.signal(number, _ignore)
        return self

    def __exit__(self, *_exc: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()
        for end in self._wakeup or ():
            end.close()
        for child in self._children:
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()

    def spawn(
        self,
        module: str,
        arguments: list[str],
        *,
        death_signal: int,
        ignored: tuple[int, ...] = (),
        talk: bool = False,
        output: Path | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> Child:
        """Start our own `module` in a session of its own; it gets `death_signal` when we die.

        `talk` opens a pipe to its stdin. What it prints goes to the file `output`, or to where
        our own output goes.
        """
        with contextlib.ExitStack() as stack:
            log = _log(stack, output) if output is not None else None
            root = str(Path(__file__).resolve().parent.parent)
            process = subprocess.Popen(
                [sys.executable, "-c", _ENTRY, root, module, *arguments],
                stdin=subprocess.PIPE if talk else None,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=pass_fds,
                preexec_fn=processes.before_exec(death_signal, ignored),  # noqa: PLW1509
                env={key: value for key, value in os.environ.items() if key != "HARNESS_TOKEN"},
            )
        process.returncode = 0  # `_reap` collects it; this keeps Popen from complaining
        child = Child(name=module, pid=process.pid, stdin=process.stdin)
        self._children.append(child)
        return child

    def read_line(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        """Give `take` what comes through a pipe until its other end is closed; then close it."""
        chunks: list[bytes] = []

        def readable() -> None:
            chunk = os.read(descriptor, 65536)
            if chunk:
                chunks.append(chunk)
                return
            self._selector.unregister(descriptor)
            os.close(descriptor)
            take(b"".join(chunks))

        self._selector.register(descriptor, selectors.EVENT_READ, readable)

    def poll(self, timeout: float | None) -> None:
        """Wait until something happens, at most `timeout` seconds, and take it in."""
        for key, _ in self._selector.select(timeout):
            key.data()
        self._reap()

    def kill_all(self, spared: Collection[Child] = ()) -> set[int]:
        """Kill all that lives below us except `spared`; returns what could not be killed."""
        return processes.kill_descendants(self._reap, {child.pid for child in spared})

    def _take_signals(self) -> None:
        assert self._wakeup is not None
        with contextlib.suppress(BlockingIOError):
            numbers = self._wakeup[0].recv(4096)
            self.signals += [number for number in numbers if number != signal.SIGCHLD]

    def _reap(self) -> None:
        """Collect every dead child, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid and child.status is None:
                    child.status = os.waitstatus_to_exitcode(status)


def _log(stack: contextlib.ExitStack, path: Path) -> IO[bytes]:
    path.touch(mode=0o600)
    return stack.enter_context(path.open("ab"))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler of Python's own is what makes a signal show up on the wakeup descriptor."""
