"""The folder of a node's sockets and shared pages: it is there for as long as launcher or agent.

Who lives from it holds it locked; the kernel lets go for those that are killed. A folder that
nobody holds is what a node has left that vanished, launcher and agent at once, and the next run on
that host removes it.

It lies under the temporary directory, unless that has so long a path (a job's own, deep in a shared
file system) that sockets in it could not be bound: then under another one.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import PlacementError

PREFIX = "harness-"
JOB = "job.json"
"""What makes a folder one of ours."""
_DRAWN = "[a-z0-9_]{8}"
"""What mkdtemp puts behind the prefix."""
_SOCKET_PATH = 107
"""Longest path of a unix socket that the kernel takes."""
_SOCKET_TAIL = len(f"/{PREFIX}xxxxxxxx/a999r99999.sock")


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """A new one, removed at the end. Raises PlacementError where there is no place for it."""
    parent = parent_folder()
    remove_abandoned(parent)
    folder, lock = held(parent, PREFIX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def held(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder in `parent`, and the descriptor that holds it until it is closed."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = hold(folder)
        if folder.is_dir():  # nobody has taken it for abandoned, between the two lines above
            return folder, lock
        os.close(lock)


def parent_folder() -> Path:
    """Where it is made: the first place with a path short enough for sockets that can be written.

    Raises PlacementError when there is none.
    """
    wanted = tempfile.gettempdir()
    for place in (wanted, "/tmp", os.environ.get("XDG_RUNTIME_DIR", "")):
        if place and fits_sockets(Path(place)) and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise PlacementError(
        f"TMPDIR: {wanted} has too long a path for sockets in it, and /tmp cannot be written",
        help="set TMPDIR to a short path on a local disk",
    )


def fits_sockets(parent: Path) -> bool:
    """Whether the kernel takes the paths of a rank's sockets in a folder under `parent`."""
    return len(os.fsencode(parent.absolute())) + _SOCKET_TAIL <= _SOCKET_PATH


def hold(folder: Path) -> int:
    """Lock `folder` with others that live from it, until the descriptor is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_abandoned(parent: Path, prefix: str = PREFIX, sign: str = JOB) -> list[Path]:
    """Remove those in `parent` that belong to this user and that nobody holds; which they were.

    `sign` is the file that makes one ours, where others may have folders of such a name.
    """
    removed = []
    name = re.compile(re.escape(prefix) + _DRAWN)
    with contextlib.suppress(OSError):
        for folder in sorted(parent.iterdir()):
            if name.fullmatch(folder.name) and _removed(folder, sign):
                removed.append(folder)
    return removed


def _removed(folder: Path, sign: str) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid() or not (folder / sign).exists():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:
        return False
    finally:
        os.close(descriptor)
