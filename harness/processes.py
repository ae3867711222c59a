"""The kernel's side of the process tree: death notices, adoption, descendants. Linux only."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def before_exec(death_signal: int, ignored: Collection[int] = ()) -> Callable[[], None]:
    """What a child does between fork and exec: it gets `death_signal` when we die.

    `ignored` signals do nothing to it until it asks for them itself (see `catches`).
    """
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork is no place to load

    def prepare() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # we died before the notice was asked for
            os._exit(1)

    return prepare


def catches(pid: int, number: int) -> bool:
    """Whether process `pid` has a handler for signal `number`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A thread and the CPU, at one moment; zeros where the kernel does not tell."""

    at: float
    """time.monotonic, seconds."""
    ready: bool
    """It runs, or could."""
    waited: float
    """Seconds that it has waited for a CPU, since it began."""
    slices: int
    """How often it has been given one."""


def turns(pid: int, thread: int | None = None) -> Turns:
    """Of a thread of process `pid`, by /proc/PID/schedstat; None: the main thread."""
    state, fields = "", []
    folder = f"/proc/{pid}/task/{pid if thread is None else thread}"
    with contextlib.suppress(OSError):
        stat = Path(f"{folder}/stat").read_text(encoding="utf-8", errors="replace")
        state = stat[stat.rindex(")") + 2 :][:1]
        fields = Path(f"{folder}/schedstat").read_text(encoding="ascii").split()
    waited, slices = (int(fields[1]) / 1e9, int(fields[2])) if len(fields) == 3 else (0.0, 0)
    return Turns(at=time.monotonic(), ready=state == "R", waited=waited, slices=slices)


def turns_of_all(pid: int) -> dict[int, Turns]:
    """Of each thread of process `pid`; empty when there is none."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    return {thread: turns(pid, thread) for thread in threads}


def starved(first: Turns, second: Turns) -> float:
    """Seconds between two moments for which the thread was ready to run and had no CPU."""
    seconds = second.at - first.at
    if first.ready and second.ready and first.slices == second.slices:
        return seconds  # the kernel books a wait when it ends
    return min(seconds, max(0.0, second.waited - first.waited))


def descendants(root: int) -> set[int]:
    """All processes below `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The name in parentheses may itself hold blanks and parentheses.
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        children.setdefault(int(parent), []).append(int(entry))
        if state == "Z":
            zombies.add(int(entry))
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found - zombies


def kill_descendants(reap: Callable[[], object], spared: Collection[int] = ()) -> set[int]:
    """SIGKILL everything below us except `spared`, until nothing is left or 2 s have passed.

    Needs `adopt_orphans`, or orphans escape. `reap` collects exit states of our children. Returns
    what could not be killed (a process in uninterruptible sleep).
    """
    deadline = time.monotonic() + 2.0
    while True:
        left = descendants(os.getpid()) - set(spared)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.005)
