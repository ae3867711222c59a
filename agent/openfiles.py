"""Who is still writing to a file: processes of this machine that may be looked into."""

import os

_ACCESS = os.O_WRONLY | os.O_RDWR


def open_for_writing(path: str) -> bool:
    """Whether a process has `path` open for writing, or mapped into its memory to write."""
    try:
        wanted = os.stat(path)
    except OSError:
        return False
    return any(
        _has_open(int(name), wanted) or _maps(int(name), path)
        for name in os.listdir("/proc")
        if name.isdigit() and int(name) != os.getpid()
    )


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False  # gone, or not ours to look into
    for name in names:
        try:
            found = os.stat(f"{folder}/{name}")
            same = (found.st_ino, found.st_dev) == (wanted.st_ino, wanted.st_dev)
            if same and _flags(pid, name) & _ACCESS:
                return True
        except OSError:
            continue
    return False


def _flags(pid: int, descriptor: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return 0


def _maps(pid: int, path: str) -> bool:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                _, mode, _, _, _, *name = line.rstrip("\n").split(None, 5)
                if mode.startswith("rw-s") and name == [path]:
                    return True
    except (OSError, ValueError):
        pass
    return False
