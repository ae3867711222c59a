"""What a fault that is done from outside is given: the processes and files of one node."""

import contextlib
import os
import random
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.chaos.kinds import Undo, Unfit
from harness.checkpointnames import is_data, is_unfinished, said_step
from harness.faults import Fault

_ESTABLISHED = "01"
_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MAX_PACING_RATE = 26, 27, 47
_DETACH = (socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
_SKF_RANDOM = 2**32 - 0x1000 + 56
_PIDFD_GETFD = 438


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank's process and what of its node can be harmed. Built by the agent of the node."""

    fault: Fault
    values: Mapping[str, Any]
    pid: int
    """Of the rank; 0 for what is done to a node."""
    others: tuple[int, ...]
    """Processes of the node's other ranks."""
    zygote: int
    """0: there is none."""
    run_dir: Path
    checkpoint: str
    """The newest one that the script has told of, a folder or a file; empty: none yet."""
    head: bool

    @property
    def random(self) -> random.Random:
        """Drawn from anew each time, so that a fault does the same wherever it is done."""
        return random.Random(self.fault.seed)


def send(pid: int, number: int) -> None:
    """A signal; nobody there is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def stop(pid: int) -> Undo:
    """SIGSTOP, and how to let it go on, if it is still there."""
    born = _born(pid)
    send(pid, signal.SIGSTOP)

    def go_on() -> None:
        if born and _born(pid) == born:
            send(pid, signal.SIGCONT)

    return go_on


def _born(pid: int) -> str:
    """When a process was started, in ticks: its number may be another's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Processes that `pid` has started, the oldest first."""
    found = []
    for thread in _entries(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    return sorted(map(int, found))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def checkpoint_files(target: Target) -> list[Path]:
    """The files of the newest checkpoint that hold tensors, the largest first. Raises Unfit."""
    path = newest_checkpoint(target)
    found = [path] if path.is_file() else list(path.rglob("*"))
    data = [each for each in found if each.is_file() and is_data(each.name)]
    if not data:
        raise Unfit(f"{path} holds no files with tensors")
    return sorted(data, key=lambda each: (-each.stat().st_size, each.name))


def older_checkpoint(target: Target) -> Path:
    """The one before the newest. Raises Unfit."""
    path = newest_checkpoint(target)
    step = said_step(path.name)
    steps = {said: each for said, each in _beside(path).items() if step is None or said < step}
    if not steps:
        raise Unfit(f"there is no checkpoint before {path.name}")
    return steps[max(steps)]


def newest_checkpoint(target: Target) -> Path:
    """What the script has told of last, or the newest beside it where that has another name by
    now: many write under a name of the moment. Raises Unfit."""
    if not target.checkpoint:
        raise Unfit("no checkpoint has been saved yet")
    path = Path(target.checkpoint)
    if path.exists() and not is_unfinished(path.name):
        return path
    steps = _beside(path)
    if not steps:
        raise Unfit(f"{path} is not there any more")
    return steps[max(steps)]


def _beside(path: Path) -> dict[int, Path]:
    """Checkpoints in the same folder, by the step that their names say."""
    if not path.parent.is_dir():
        return {}
    return {
        step: each
        for each in path.parent.iterdir()
        if (each.is_dir() or is_data(each.name))
        and not is_unfinished(each.name)
        and (step := said_step(each.name)) is not None
    }


def damage(target: Target, harm: Callable[[], None]) -> None:
    """Do `harm` to files, then kill the rank: files are read when the job starts again."""
    harm()
    send(target.pid, signal.SIGKILL)


@contextlib.contextmanager
def descriptors(pid: int) -> Iterator[Callable[[int], int]]:
    """Take copies of another process's descriptors, as `pidfd_getfd` gives them."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    taken: list[int] = []

    def take(number: int) -> int:
        copy = int(libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        taken.append(copy)
        return copy

    try:
        yield take
    finally:
        for copy in taken:
            os.close(copy)
        os.close(pidfd)


def loaders(pid: int) -> list[int]:
    """The rank's children that carry its own name: processes of its data loaders."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{child}/comm").read_text().strip()
            if "python" in name or name.startswith("pt_data") or name == _comm(pid):
                found.append(child)
    return found


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def rank_sockets(target: Target) -> list[socket.socket]:
    """The rank's TCP connections with other ranks of this node, as copies that are to be closed."""
    ends = {end for pid in target.others for end in _ends(pid).values()}
    return _copies(
        target.pid, [fd for fd, peer in _ends(target.pid, far=True).items() if peer in ends]
    )


def connected_to(pid: int, port: int) -> list[socket.socket]:
    """The TCP connections of a process with a port, as copies that are to be closed."""
    far = _ends(pid, far=True)
    return _copies(pid, [fd for fd, peer in far.items() if int(peer[-4:], 16) == port])


def _copies(pid: int, numbers: list[int]) -> list[socket.socket]:
    with descriptors(pid) as take:
        return [socket.socket(fileno=os.dup(take(number))) for number in numbers]


def _ends(pid: int, *, far: bool = False) -> dict[int, str]:
    """Descriptor → the near (or far) end of each TCP connection that a process has."""
    table = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                table[fields[9]] = fields[2 if far else 1]
    found = {}
    for number in _entries(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            inode = link.removeprefix("socket:[").rstrip("]")
            if inode in table:
                found[int(number)] = table[inode]
    return found


def drop(sockets: list[socket.socket], percent: float) -> Undo | None:
    """Lose so many percent of what arrives at `sockets`; None where there are none.

    A socket filter (BPF) decides before TCP sees the segment, so its sender hears nothing and
    sends it again, as on a broken link.
    """
    for each in sockets:
        _filter(each, percent)
    return _take_back(sockets, lambda each: each.setsockopt(*_DETACH))


def pace(target: Target, rate: int) -> Undo | None:
    """Let the kernel send at most `rate` bytes a second to each other rank of the node; None where
    there are no connections."""
    sockets = rank_sockets(target)
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
    unlimited = struct.pack("=I", 2**32 - 1)
    return _take_back(
        sockets,
        lambda each: each.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, unlimited),
    )


def _take_back(
    sockets: list[socket.socket], undo_one: Callable[[socket.socket], None]
) -> Undo | None:
    if not sockets:
        return None

    def undo() -> None:
        for each in sockets:
            with each, contextlib.suppress(OSError):
                undo_one(each)

    return undo


def _filter(each: socket.socket, percent: float) -> None:
    import ctypes

    # ld random; jge threshold ? accept : drop
    threshold = min(int(percent / 100 * 2**32), 2**32 - 1)
    code = [(0x20, 0, 0, _SKF_RANDOM), (0x35, 0, 1, threshold), (6, 0, 0, 2**32 - 1), (6, 0, 0, 0)]
    if percent >= 100:
        code = [(6, 0, 0, 0)]
    words = b"".join(struct.pack("=HBBI", *each) for each in code)
    memory = ctypes.create_string_buffer(words)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(memory))
    each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
