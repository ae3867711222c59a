"""Changes of files below some folders, from the kernel (inotify): no polling, and only what
processes of this machine do, also on file systems that others share."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_CLOSE_WRITE = 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x4000, 0x8000
_ONLYDIR, _ISDIR = 0x1000000, 0x40000000
_WANTED = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")
_BYTES = 1 << 16
MOST_FOLDERS = 8192


class Unwatchable(Exception):
    """The kernel does not watch; the message says why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`what`: closed (after writing), came, went, made (a folder or link),
    lost (the kernel has dropped changes: look at everything)."""

    what: str
    path: str
    folder: bool = False


class Watch:
    """Folders being watched, each without what lies below it."""

    def __init__(self) -> None:
        """Raises Unwatchable."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise Unwatchable(os.strerror(ctypes.get_errno()))
        self._paths: dict[int, str] = {}

    def add(self, folder: str) -> bool:
        """Watch `folder`; whether it is one. Raises Unwatchable when there are too many."""
        if len(self._paths) >= MOST_FOLDERS:
            raise Unwatchable(f"there are more than {MOST_FOLDERS} folders")
        number = self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), _WANTED)
        if number >= 0:
            self._paths[number] = folder
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return False
        hint = " (fs.inotify.max_user_watches)" if code == errno.ENOSPC else ""
        raise Unwatchable(f"{os.strerror(code)}{hint}")

    def changes(self) -> Iterator[Change]:
        """What has happened since the last call, in its order."""
        while True:
            try:
                data = os.read(self.descriptor, _BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                yield from self._change(number, mask, name)

    def _change(self, number: int, mask: int, name: str) -> Iterator[Change]:
        if mask & _OVERFLOW:
            yield Change(what="lost", path="")
            return
        folder = self._paths.get(number)
        if mask & _IGNORED:
            self._paths.pop(number, None)
        if folder is None or not (name or mask & _DELETE_SELF):
            return
        path = os.path.join(folder, name) if name else folder
        what = {
            _CLOSE_WRITE: "closed",
            _MOVED_FROM: "went",
            _MOVED_TO: "came",
            _CREATE: "made",
            _DELETE: "went",
            _DELETE_SELF: "went",
        }.get(mask & 0xFFF)
        if what is not None:
            yield Change(what=what, path=path, folder=bool(mask & _ISDIR) or not name)
