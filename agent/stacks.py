"""Taking stacks, the one home: of ranks and of their Python children, by whatever means works.

In this order: the rank's own word, where that is enough; py-spy without stopping the process (works
on stopped processes too, and while a C call holds the interpreter lock); the rank's own worker
server; pystack where it is installed; and, only where that does no harm any more, a signal to the
handler that the guest has registered.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import processes as kernel
from harness.agent import asleep, flight, processes, spyreport
from harness.agent.spyreport import NoStack
from harness.sightings import ChildTaken, Frame, ThreadTaken
from harness.worker.assignment import STACK_SIGNAL

SPY_SECONDS = 3.0
SERVER_SECONDS = 2.0
_OWN_SECONDS = 0.1
FROZEN = ("T", "t")
_MOST_CHILDREN = 16
_SIDE_BY_SIDE = 8
_LOOK_SECONDS = 0.01
_SIGNAL_SECONDS = 1.0
_FAMILY_SECONDS = 0.25
"""For so long who descends from whom is believed: all ranks are looked at side by side, and twice
within no less than that."""
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A process to look at. `server` is its worker server's socket, if it has one; `fatal` the
    file its registered stack handler writes to, when it may be asked to; `ask` asks the process
    itself, where that is enough."""

    pid: int
    server: Path | None = None
    fatal: Path | None = None
    ask: Callable[[float], Awaitable[str]] | None = None
    with_locals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread's frames, innermost first, by which tool, and the tool's own report.
    `variables` stand beside the frames when they were asked for."""

    frames: tuple[Frame, ...] = ()
    by: str = ""
    report: bytes = b""
    suffix: str = "txt"
    variables: tuple[tuple[str, ...], ...] = ()
    threads: tuple[ThreadTaken, ...] = ()
    missing: str = ""
    """Why there are no frames."""


class Taker:
    """Takes stacks until `deadline` (monotonic seconds), a few side by side."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._slots = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._family: processes.Family = {}
        self._family_at = -_FAMILY_SECONDS

    def left(self, at_most: float) -> float:
        """Seconds that one step may take."""
        return max(0.05, min(at_most, self._deadline - time.monotonic()))

    async def take(self, subject: Subject) -> Stack:
        """Never raises: what could not be had is said in `missing`."""
        problems: list[str] = []
        for way in (self._own, self._spy, self._server, self._pystack, self._signal):
            try:
                async with self._slots:
                    stack = await way(subject)
            except NoStack as no_stack:
                problems.append(str(no_stack))
                continue
            if stack is not None and stack.frames:
                return stack
        return Stack(missing="; ".join(problems))

    def below(self, pid: int) -> list[processes.Stat]:
        """All processes below `pid`, as they are now or were a moment ago."""
        now = time.monotonic()
        if now - self._family_at > _FAMILY_SECONDS:  # one look at /proc for all ranks
            self._family, self._family_at = processes.family(), now
        return processes.descendants(pid, self._family)

    async def children(self, pid: int) -> tuple[ChildTaken, ...]:
        """The Python processes below `pid`, with their stacks."""
        below = self.below(pid)
        pythons = [stat.pid for stat in below if stat.state != "Z" and is_python(stat.pid)]
        return tuple(
            await asyncio.gather(*(self._child(child) for child in pythons[:_MOST_CHILDREN]))
        )

    async def _child(self, pid: int) -> ChildTaken:
        stack = await self.take(Subject(pid=pid))
        return ChildTaken(
            pid=pid,
            name=processes.name(pid),
            process=processes.facts(pid),
            frames=stack.frames[: spyreport.MOST_FRAMES],
            user_frame=spyreport.user_frame(stack.frames),
            missing=stack.missing,
            asleep_seconds=asleep.seconds_left(pid),
        )

    async def _own(self, subject: Subject) -> Stack | None:
        """Costs far less than a look from outside, which starts a program."""
        if subject.ask is None or _state(subject.pid) in FROZEN:
            return None
        text = await subject.ask(self.left(_OWN_SECONDS))
        return Stack(frames=spyreport.from_faulthandler(text), by="itself", report=text.encode())

    async def _spy(self, subject: Subject) -> Stack:
        report = await asyncio.to_thread(
            spy, subject.pid, self.left(SPY_SECONDS), with_locals=subject.with_locals
        )
        frames, variables = spyreport.main_thread(report, subject.pid)
        return Stack(
            frames=frames,
            by="py-spy",
            report=report,
            suffix="json",
            variables=variables,
            threads=spyreport.other_threads(report, subject.pid),
        )

    async def _server(self, subject: Subject) -> Stack | None:
        if subject.server is None or _state(subject.pid) in FROZEN:
            return None
        try:
            text = await flight.ask(subject.server, "dump_traceback", self.left(SERVER_SECONDS))
        except flight.Unanswered as unanswered:
            raise NoStack(str(unanswered)) from None
        frames = spyreport.from_faulthandler(text.decode("utf-8", "replace"))
        return Stack(frames=frames, by="dump_traceback", report=text)

    async def _pystack(self, subject: Subject) -> Stack | None:
        program = _beside("pystack")
        if program is None:
            return None
        command = [program, "remote", "--no-block", str(subject.pid)]
        text = await asyncio.to_thread(_run, command, "pystack", self.left(SPY_SECONDS))
        return Stack(frames=spyreport.from_pystack(text.decode()), by="pystack", report=text)

    async def _signal(self, subject: Subject) -> Stack | None:
        """Only a process that has a handler for it: any other would die of the signal."""
        if subject.fatal is None or _state(subject.pid) in FROZEN:
            return None
        if not kernel.catches(subject.pid, STACK_SIGNAL):
            return None
        before = _size(subject.fatal)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(subject.pid, STACK_SIGNAL)
        until = time.monotonic() + self.left(_SIGNAL_SECONDS)
        seen = before
        while time.monotonic() < until:
            await asyncio.sleep(_LOOK_SECONDS)
            size = _size(subject.fatal)
            if size > before and size == seen:
                break
            seen = size
        text = _read_from(subject.fatal, before)
        if not text:
            raise NoStack("it did not answer the signal that asks for its stack")
        frames = spyreport.from_faulthandler(text.decode("utf-8", "replace"))
        return Stack(frames=frames, by="faulthandler", report=text)


def is_python(pid: int) -> bool:
    """Whether the program of process `pid` is a Python interpreter."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def spy(pid: int, seconds: float, *, with_locals: bool = False) -> bytes:
    """py-spy's JSON report of `pid`, taken without stopping it. Raises NoStack. Blocks."""
    program = _beside("py-spy")
    if program is None:
        raise NoStack("py-spy is not installed (pip install py-spy)")
    extra = ["--locals"] if with_locals else []
    command = [program, "dump", "--nonblocking", "--json", *extra, "--pid", str(pid)]
    return _run(command, "py-spy", seconds)


@cache
def _beside(name: str) -> str | None:
    """A program beside this interpreter, else the one in PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def _run(command: list[str], name: str, seconds: float) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(seconds, 0.1), check=False)
    except subprocess.TimeoutExpired:
        raise NoStack(f"{name} took longer than {seconds:.1f} s") from None
    except OSError as error:
        raise NoStack(f"{name} could not be started: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip()
    raise NoStack(_in_words(name, said) or f"{name}: exit code {done.returncode}")


def _in_words(name: str, said: str) -> str:
    """What a tool's complaint means and what to do about it."""
    low = said.lower()
    if "permission denied" in low or "operation not permitted" in low:
        return f"{name} was refused: {what_to_allow()}"
    if "failed to find a python interpreter" in low or "failed to get python version" in low:
        return f"{name} finds no interpreter in it: it is just starting, or shutting down"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{name}: {lines[0]}" if lines else ""


def what_to_allow() -> str:
    """Why this process may not look into another one, and what to set so that it may."""
    try:
        scope = int(_YAMA.read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return f"{_YAMA} is 3, which forbids it until the machine is started again with less"
    if scope:
        return (
            f"{_YAMA} is {scope}; set it to 0 (sysctl kernel.yama.ptrace_scope=0), "
            "or give CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        )
    return (
        "ptrace is not permitted; run as the same user as the process, "
        "or give CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    )


def _state(pid: int) -> str:
    stat = processes.read_stat(pid)
    return "" if stat is None else stat.state


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""
