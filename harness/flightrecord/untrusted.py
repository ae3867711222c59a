"""Bytes of a dump to plain values: a pickle that may hold nothing but builtin containers and
scalars, or JSON. Whatever else it asks for is refused before it happens."""

import contextlib
import io
import json
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 512 << 20
"""Bytes of a file that are still read: some 100 times a dump of the largest usual buffer."""

_ROOM, _TIMES = 1 << 30, 128
"""Bytes that reading may take beside what the process has, and for each byte of the data. A pickle
of ten bytes can name a place in its memo for which Python asks for 30 GB."""

OLDEST, NEWEST = (2, 0), (2, 10)
"""Schema versions (major, minor) whose fields are known."""


class Unreadable(Exception):
    """The bytes are no dump that can be used; the message says why, in one line."""


class _Plain(pickle.Unpickler):
    """A pickle reaches anything beyond plain values only through these two doors."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Unreadable(f"refused: it asks for {module[:60]}.{name[:60]}, a dump holds plain data")

    def persistent_load(self, pid: object) -> NoReturn:
        raise Unreadable("refused: it refers to an object outside the file")


def parse(data: bytes) -> dict[str, Any]:
    """The dump in `data`, with its version checked.

    Raises Unreadable for everything else, also for what would take too much memory or depth.
    """
    if not data:
        raise Unreadable("empty")
    try:
        value = _json(data) if data.lstrip()[:1] in (b"{", b"[") else _pickle(data)
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("refused: it asks for more memory than a dump needs") from None
    except RecursionError:
        raise Unreadable("refused: it is nested too deeply") from None
    return checked(value)


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise Unreadable("not a flight record: neither a pickle nor JSON") from None
    except ValueError as error:
        cut = getattr(error, "pos", 0) >= len(data.rstrip()) - 1 or "Unterminated" in str(error)
        raise Unreadable("truncated: its JSON ends too soon" if cut else "broken JSON") from None


def _pickle(data: bytes) -> object:
    if data[:1] != b"\x80":
        raise Unreadable("not a flight record: neither a pickle nor JSON")
    return unpickle(data)[0]


@contextlib.contextmanager
def _bounded(more: int) -> Iterator[None]:
    """A MemoryError where the process takes `more` bytes than it has now, as long as this lasts."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more
    if any(limit not in (resource.RLIM_INFINITY, -1) and limit <= most for limit in (soft, hard)):
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def unpickle(data: bytes) -> tuple[object, dict[int, Any]]:
    """The value of a pickle, and what it has memoized. Raises Unreadable."""
    # The buffer spares the unpickler a call into Python for every few bytes.
    stream = io.BufferedReader(io.BytesIO(data), buffer_size=1 << 20)
    unpickler = _Plain(stream)
    try:
        with _bounded(_ROOM + _TIMES * len(data)):
            value = unpickler.load()
    except (Unreadable, MemoryError, RecursionError):
        raise
    except EOFError:
        raise Unreadable("truncated: its pickle ends too soon") from None
    except Exception as error:  # what a foreign or broken pickle raises has no bounds
        if "truncated" in str(error) or "Ran out of input" in str(error):
            raise Unreadable("truncated: its pickle ends too soon") from None
        raise Unreadable(f"broken pickle: {type(error).__name__}") from None
    memo: dict[int, Any] = unpickler.memo.copy()
    return value, memo


def checked(value: object) -> dict[str, Any]:
    """`value` if it is a dump of a known schema version. Raises Unreadable."""
    if not isinstance(value, dict) or not ("version" in value or "entries" in value):
        raise Unreadable(f"not a flight record: it holds {_what(value)}")
    text = value.get("version")
    try:
        major, minor = (int(part) for part in str(text).split(".")[:2])
    except ValueError:
        raise Unreadable(f"its schema version is unknown: {str(text)[:40]!r}") from None
    if (major, minor) < OLDEST or major > NEWEST[0]:
        raise Unreadable(f"its schema version is unknown: {text}")
    if not isinstance(value.get("entries", []), list):
        raise Unreadable("its entries are not a list")
    return value


def is_newer(version: str) -> bool:
    """Whether a version that `parse` let pass is newer than all that are known."""
    return tuple(int(part) for part in version.split(".")[:2]) > NEWEST


def _what(value: object) -> str:
    if isinstance(value, dict):
        return "a dictionary without version and entries"
    return f"a value of type {type(value).__name__}"
