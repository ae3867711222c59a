"""Processes as /proc shows them: who descends from whom, and killing all of a family."""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.sightings import ProcessFacts

_PASS_SECONDS = 0.005
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_seconds: float
    threads: int
    rss_bytes: int


Family = Mapping[int, list[Stat]]


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name may hold spaces and brackets
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE,
    )


def facts(pid: int) -> ProcessFacts | None:
    """What /proc says of a process; None when it is gone."""
    stat = read_stat(pid)
    if stat is None:
        return None
    return ProcessFacts(
        state=stat.state,
        wchan=_read(f"/proc/{pid}/wchan"),
        cpu_seconds=stat.cpu_seconds,
        rss_bytes=stat.rss_bytes,
        threads=stat.threads,
    )


def name(pid: int) -> str:
    """The name that the process goes by, as `ps` shows it; at most 15 characters."""
    return _read(f"/proc/{pid}/comm").strip()


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def family() -> Family:
    """All processes of the machine by their parent, zombies included."""
    stats = [read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    by_parent: dict[int, list[Stat]] = {}
    for stat in stats:
        if stat is not None:
            by_parent.setdefault(stat.parent, []).append(stat)
    return by_parent


def descendants(root: int, by_parent: Family | None = None) -> list[Stat]:
    """All processes below `root`, zombies included; `by_parent` is an earlier `family()`."""
    by_parent = family() if by_parent is None else by_parent
    found: list[Stat] = []
    front = [root]
    while front:
        children = by_parent.get(front.pop(), [])
        found.extend(children)
        front.extend(child.pid for child in children)
    return found


def signal_all(stats: Collection[Stat], number: int) -> None:
    for stat in stats:
        if stat.state != "Z":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stat.pid, number)


def kill_below(root: int, *, spare: Collection[int] = (), seconds: float = 5.0) -> bool:
    """SIGKILL everything below `root` that is in none of the sessions `spare`, until it is gone.

    For the last moments of an agent: it blocks. False when something is left after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = [stat for stat in descendants(root) if stat.session not in spare]
        for stat in left:
            if stat.state == "Z" and stat.parent == root:
                reap(stat.pid)
        alive = [stat for stat in left if stat.state != "Z"]
        if not alive:
            return True
        signal_all(alive, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_PASS_SECONDS)


def reap_orphans(known: Collection[int], own_session: int) -> None:
    """Collect dead children that are nobody's: what ranks have left behind.

    Stops at the first dead child of `known`, or of our own session: its end is awaited elsewhere.
    """
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in known:
            return
        stat = read_stat(dead.si_pid)
        if stat is None or stat.session == own_session:
            return
        reap(dead.si_pid)


def reap(pid: int) -> None:
    """Collect a dead child whose end interests nobody."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
