"""The folder of a node's sockets and shared pages: it is there for as long as launcher or agent.

Who lives from it holds it locked; the kernel lets go for those that are killed. A folder that
nobody holds is what a node has left that vanished, launcher and agent at once, and the next run on
that host removes it.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "harness-"
JOB = "job.json"
"""What makes a folder one of ours."""
_NAME = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
"""As mkdtemp makes them."""


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """A new one, removed at the end."""
    remove_abandoned(Path(tempfile.gettempdir()))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = hold(folder)
        if folder.is_dir():  # nobody has taken it for abandoned, between the two lines above
            break
        os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def hold(folder: Path) -> int:
    """Lock `folder` with others that live from it, until the descriptor is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove those in `parent` that belong to this user and that nobody holds; which they were."""
    removed = []
    with contextlib.suppress(OSError):
        for folder in sorted(parent.iterdir()):
            if _NAME.fullmatch(folder.name) and _removed(folder):
                removed.append(folder)
    return removed


def _removed(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid() or not (folder / JOB).is_file():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:
        return False
    finally:
        os.close(descriptor)
