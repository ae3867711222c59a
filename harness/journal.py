"""The journal of a run: every record, one JSON line each; line 1 is the header.

Record `i` (0-based) is line `i + 2` of the file. One process writes, any number read. Not for
deciding anything: it keeps bytes, in order, and says when some are damaged.
"""

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from harness import codec
from harness.errors import UsageError
from harness.events import Record

SCHEMA = 1
FILE_NAME = "journal.jsonl"
TORN_NAME = "journal.torn"

log = logging.getLogger("harness.journal")

Say = Callable[[str], None]

_MARK_EVERY = 1024
_FOLLOW_SECONDS = 0.1
_CHUNK = 1 << 20


class JournalError(UsageError):
    """A journal that cannot be read or written; the message names file and line."""

    code = "H301"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Line 1. `harness` is the version that began the journal."""

    schema: int
    harness: str
    run: str


class JournalWriter:
    """Appends records to the journal at `path`; begins it or goes on with it.

    Durability: a record is with the kernel when `append` returns, so it survives SIGKILL of the
    writer; it survives the loss of the machine after the next `sync`. A torn last line of an
    earlier writer is moved to `journal.torn` beside the journal and reported through `say`.
    Raises JournalError when the file is not ours, of another schema, or has another writer.
    """

    def __init__(self, path: Path, *, run: str, version: str, say: Say = log.warning) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._lock()
            self._set_torn_tail_aside(say)
            self._marks: list[int] = []
            self.count = 0
            self._size = os.fstat(self._fd).st_size
            if self._size == 0:
                header = Header(schema=SCHEMA, harness=version, run=run)
                self._write(msgspec.json.encode(header) + b"\n")
            else:
                self._count_lines()
            self._start = self._marks[0] if self._marks else self._size
        except BaseException:
            os.close(self._fd)
            raise
        self._dirty = True

    def append(self, record: Record) -> int:
        """Write `record`; its index."""
        return self.append_line(codec.encode(record))

    def append_line(self, line: bytes) -> int:
        """Write a record already encoded, without line end; its index."""
        self.append_lines([line])
        return self.count - 1

    def append_lines(self, lines: Sequence[bytes]) -> None:
        """Write records already encoded, in one go."""
        size = self._size
        marks = []
        for index, line in enumerate(lines, self.count):
            if b"\n" in line:
                raise JournalError("a record must be one line")
            if index % _MARK_EVERY == 0:
                marks.append(size)
            size += len(line) + 1
        self._write(b"\n".join([*lines, b""]))
        self._marks += marks
        self.count += len(lines)
        self._dirty = True

    def sync(self) -> None:
        """Make everything appended so far survive the loss of the machine. May take long; safe to
        call from another thread."""
        if self._dirty:
            self._dirty = False
            os.fdatasync(self._fd)

    def lines_from(self, index: int) -> "LineReader":
        """A reader of raw lines that begins with record `index`, which need not exist yet."""
        mark = min(index // _MARK_EVERY, len(self._marks) - 1)
        if mark < 0:
            return LineReader(self.path, offset=self._start, skip=index)
        return LineReader(self.path, offset=self._marks[mark], skip=index - mark * _MARK_EVERY)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sync()
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"{self.path} is being written by another controller") from None
        except OSError:
            pass  # a file system without locks

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # no half line in the middle
            raise JournalError(f"cannot write {self.path}: {error.strerror}") from None
        self._size += len(data)

    def _set_torn_tail_aside(self, say: Say) -> None:
        size = os.fstat(self._fd).st_size
        whole = _end_of_last_line(self._fd, size)
        if whole == size:
            return
        torn = self.path.with_name(TORN_NAME)
        tail = os.pread(self._fd, size - whole, whole)
        with torn.open("ab") as file:
            file.write(tail + b"\n")
        os.ftruncate(self._fd, whole)
        say(f"{self.path}: the last line was torn; its {size - whole} bytes are now in {torn.name}")

    def _count_lines(self) -> None:
        with self.path.open("rb") as file:
            offset = len(_checked_header(self.path, file.readline())[1])
            for line in file:
                if self.count % _MARK_EVERY == 0:
                    self._marks.append(offset)
                offset += len(line)
                self.count += 1


class LineReader:
    """Whole raw lines of a growing journal, in order, without their line ends."""

    def __init__(self, path: Path, *, offset: int, skip: int = 0) -> None:
        self._file = path.open("rb", buffering=0)
        self._file.seek(offset)
        self._skip = skip
        self._rest = b""

    def read(self, most: int = _CHUNK) -> list[bytes]:
        """The next lines, about `most` bytes of them; none when there is nothing new."""
        while True:
            chunk = self._file.read(most)
            if not chunk:
                return []
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            skipped = min(self._skip, len(lines))
            self._skip -= skipped
            if len(lines) > skipped:
                return lines[skipped:]

    @property
    def torn(self) -> int:
        """Bytes of a line that has no end yet."""
        return len(self._rest)

    def close(self) -> None:
        self._file.close()


def read_header(path: Path) -> Header:
    """Line 1 of the journal at `path`. Raises JournalError."""
    with _opened(path) as reader:
        return reader.header


def read(
    path: Path, *, on_bad: Literal["raise", "skip"] = "raise", say: Say = log.warning
) -> Iterator[Record]:
    """All records of the journal at `path`, in order.

    A torn last line is left out and reported through `say`. A damaged line elsewhere raises
    JournalError naming file and line, or with `on_bad="skip"` is left out and reported.
    """
    with _opened(path) as reader:
        yield from reader.records(on_bad, say)
        if reader.lines.torn:
            say(f"{path}:{reader.line_number + 1}: the last line is torn, left out")


def follow(
    path: Path,
    stop: threading.Event,
    *,
    on_bad: Literal["raise", "skip"] = "raise",
    say: Say = log.warning,
) -> Iterator[Record]:
    """All records of the journal at `path` and then those that are appended, until `stop`."""
    with _opened(path) as reader:
        while True:
            yield from reader.records(on_bad, say)
            if stop.wait(_FOLLOW_SECONDS):
                yield from reader.records(on_bad, say)
                return


class _Reader:
    def __init__(self, path: Path, header: Header, lines: LineReader) -> None:
        self.path = path
        self.header = header
        self.lines = lines
        self.line_number = 1

    def records(self, on_bad: str, say: Say) -> Iterator[Record]:
        while batch := self.lines.read():
            for line in batch:
                self.line_number += 1
                try:
                    yield codec.decode(line)
                except codec.CodecError as error:
                    text = f"{self.path}:{self.line_number}: not a record: {error}"
                    if on_bad == "raise":
                        raise JournalError(text, help=_HELP_DAMAGED) from None
                    say(f"{text}; left out")


_HELP_DAMAGED = "the lines around it are sound; a reader may leave this one out"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    try:
        with path.open("rb") as file:
            header, first = _checked_header(path, file.readline())
        lines = LineReader(path, offset=len(first))
    except FileNotFoundError:
        raise JournalError(f"no journal at {path}") from None
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    try:
        yield _Reader(path, header, lines)
    finally:
        lines.close()


def _checked_header(path: Path, line: bytes) -> tuple[Header, bytes]:
    if not line.endswith(b"\n"):
        raise JournalError(f"{path} has no header yet: nothing was recorded")
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        raise JournalError(f"{path}:1: not the header of a Harness journal") from None
    if header.schema != SCHEMA:
        raise JournalError(
            f"{path} has schema {header.schema}, this version of Harness reads schema {SCHEMA}",
            help=f"read it with Harness {header.harness}",
        )
    return header, line


def _end_of_last_line(fd: int, size: int) -> int:
    """Offset behind the last line end; 0 when there is none."""
    end = size
    while end > 0:
        start = max(0, end - _CHUNK)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
