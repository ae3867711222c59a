"""Is a checkpoint file whole? Looked at in two ways: its outline, which costs a few reads, and all
of its bytes, once, in pieces between which the caller may rest.

Formats are told by their first bytes: archives of torch.save and numpy, several of them in one
file (torch.distributed.checkpoint), torch.save's older format, safetensors, pickles, tar.
"""

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from harness.agent import inertpickle

_ZIP = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES, _ZIP_COMMENT = 22, 65_535
_LOCAL_HEADER = 30
_CHUNK = 1 << 20
_LARGEST_PICKLE = 32 << 20
"""Bytes of an archive's pickle that is still read for its step; tensors are not in it."""
_LARGEST_HEADER = 100 << 20
"""Of safetensors, by its own definition."""
_MOST_ARCHIVES = 100_000
_QUICKLY_READ = 64 << 20
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")


@dataclass(slots=True, kw_only=True)
class Span:
    """Bytes of a file with a checksum of their own (CRC-32 of what they hold)."""

    name: str
    begin: int
    end: int
    crc: int
    deflated: bool = False


@dataclass(slots=True, kw_only=True)
class Outline:
    """`problem` says in words what is wrong, `torn` that the file just ends too soon."""

    size: int = 0
    problem: str = ""
    torn: bool = False
    format: str = ""
    """torch, zip, safetensors, pickle or tar; "" of an empty file and of what is none of these."""
    step: tuple[str, int] | None = None
    """What the file says of itself: under which key, and the step."""
    spans: list[Span] = field(default_factory=list)

    def ends_too_soon(self, why: str) -> "Outline":
        self.problem, self.torn = why, True
        return self


def outline(path: str, *, steps: bool = True) -> Outline:
    """What the ends of the file say; with `steps` also what it says of its step. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = Outline(size=size)
        head = file.read(16)
        if not head:
            return found.ends_too_soon("it is empty")
        if head.startswith(_ZIP):
            found.format = "torch" if _begins_as_torchs(file) else "zip"
            return _archives(file, found, steps)
        if path.endswith(".safetensors"):
            found.format = "safetensors"
            return _safetensors(file, head, found)
        if head.startswith(inertpickle.MAGIC):
            found.format = "torch"
            return _legacy(file, found)
        if head[0] == 0x80 and 2 <= head[1] <= 5 and path.endswith(_PICKLES):
            found.format = "pickle"
            file.seek(-1, os.SEEK_END)
            return found if file.read(1) == b"." else found.ends_too_soon("its pickle has no end")
        if path.endswith(".tar"):
            return _tar(file, found)
        return found


def read(path: str, known: Outline) -> Generator[int, None, tuple[str, bytes]]:
    """All bytes once; yields how many after each piece. What is wrong in words, if anything, and a
    digest. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    spans = sorted(known.spans, key=lambda span: span.begin)
    sums = _Sums(spans)
    with open(path, "rb", buffering=0) as file:
        _once(file.fileno())
        at = 0
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            sums.take(at, chunk)
            at += len(chunk)
            yield len(chunk)
    return sums.problem(), digest.digest()


def flaw(path: str, most: int = _QUICKLY_READ) -> str:
    """What is wrong with a file that could not be loaded, in words; "" where nothing shows.

    Only of files up to `most` bytes are all bytes read; of larger ones the ends. Raises OSError.
    """
    known = outline(path, steps=False)
    if known.problem or known.size > most:
        return known.problem
    reading = read(path, known)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            problem: str = end.value[0]
            return problem


def _once(descriptor: int) -> None:
    """These pages are read once: that shall not push out what training needs."""
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NOREUSE)
    except OSError:
        return


class _Sums:
    """Checksums of spans that do not overlap, taken while the file goes by."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._at = 0
        self._crc = 0
        self._inflate: Any = None
        self._bad: list[str] = []

    def take(self, at: int, chunk: bytes) -> None:
        end = at + len(chunk)
        view = memoryview(chunk)
        while self._at < len(self._spans) and self._spans[self._at].begin < end:
            span = self._spans[self._at]
            piece = view[max(span.begin - at, 0) : max(span.end - at, 0)]
            self._add(span, piece)
            if span.end > end:
                return
            if self._crc != span.crc and span.name not in self._bad:
                self._bad.append(span.name)
            self._at += 1
            self._crc, self._inflate = 0, None

    def _add(self, span: Span, piece: memoryview) -> None:
        if not span.deflated:
            self._crc = zlib.crc32(piece, self._crc)
            return
        if self._inflate is None:
            self._inflate = zlib.decompressobj(-15)
        left: bytes | memoryview = piece
        try:
            while left:
                self._crc = zlib.crc32(self._inflate.decompress(left, _CHUNK), self._crc)
                left = self._inflate.unconsumed_tail
        except zlib.error:
            self._bad.append(span.name)

    def problem(self) -> str:
        if not self._bad:
            return ""
        more = f" and {len(self._bad) - 1} more" if len(self._bad) > 1 else ""
        return f"the checksum of {self._bad[0]}{more} in it is wrong"


# --- formats -------------------------------------------------------------------------------------


def _begins_as_torchs(file: BinaryIO) -> bool:
    """Whether the first entry of an archive is the pickle of torch.save."""
    file.seek(0)
    header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER:
        return False
    (length,) = struct.unpack("<H", header[26:28])
    return file.read(length).endswith(b"/data.pkl")


class _Part(io.RawIOBase):
    """The first `end` bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end, self._at = file, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._end)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(max(0, min(len(buffer), self._end - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _archives(file: BinaryIO, found: Outline, steps: bool) -> Outline:
    """One archive, or several one after the other: from the last to the first."""
    end = found.size
    for _ in range(_MOST_ARCHIVES):
        part = io.BufferedReader(_Part(file, end))
        try:
            if not _ends_there(part, end):
                raise zipfile.BadZipFile
            archive = zipfile.ZipFile(part)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
            if end == found.size:
                return found.ends_too_soon("its archive has no directory at the end")
            return found  # something else stands before the archive: not ours to judge
        try:
            begin = min((info.header_offset for info in archive.infolist()), default=0)
            found.spans += _spans(file, archive)
            if steps and end == found.size:
                found.step = _step(archive)
        except (zipfile.BadZipFile, struct.error, EOFError, ValueError) as error:
            found.problem = f"its archive is broken ({error})"
            return found
        if begin <= 0 or begin >= end:
            return found
        end = begin
    return found


def _ends_there(file: BinaryIO, end: int) -> bool:
    """Whether an archive ends with the file; zipfile takes one that ends within it as well."""
    file.seek(max(0, end - _ZIP_END_BYTES))
    if file.read(_ZIP_END_BYTES).startswith(_ZIP_END):
        return True
    file.seek(max(0, end - _ZIP_END_BYTES - _ZIP_COMMENT))
    tail = file.read()
    at = tail.rfind(_ZIP_END)
    comment = tail[at + _ZIP_END_BYTES - 2 : at + _ZIP_END_BYTES]
    return at >= 0 and at + _ZIP_END_BYTES + int.from_bytes(comment, "little") == len(tail)


def _spans(file: BinaryIO, archive: zipfile.ZipFile) -> list[Span]:
    spans = []
    for info in archive.infolist():
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER)
        if not header.startswith(_ZIP):
            raise zipfile.BadZipFile(f"{info.filename} is not where its directory says")
        names, extra = struct.unpack("<HH", header[26:30])
        begin = info.header_offset + _LOCAL_HEADER + names + extra
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        # A checksum of 0 has not been computed: torch can be told to leave it out.
        if info.CRC and (deflated or info.compress_type == zipfile.ZIP_STORED):
            spans.append(
                Span(
                    name=info.filename,
                    begin=begin,
                    end=begin + info.compress_size,
                    crc=info.CRC,
                    deflated=deflated,
                )
            )
    return spans


def _step(archive: zipfile.ZipFile) -> tuple[str, int] | None:
    for info in archive.infolist():
        if info.filename.endswith("data.pkl") and info.file_size <= _LARGEST_PICKLE:
            try:
                return inertpickle.step_in(io.BytesIO(archive.read(info)))
            except Exception:  # what a strange pickle raises has no bounds; its bytes are checked
                return None
    return None


def _safetensors(file: BinaryIO, head: bytes, found: Outline) -> Outline:
    """https://github.com/huggingface/safetensors, "Format": length of the header, header, data."""
    if len(head) < 8:
        return found.ends_too_soon("it is shorter than the length of its header")
    (length,) = struct.unpack("<Q", head[:8])
    if length > _LARGEST_HEADER:
        found.problem = "its header is too long to be one"
        return found
    if found.size < 8 + length:
        return found.ends_too_soon("it ends within its header")
    file.seek(8)
    try:
        header = json.loads(file.read(length))
        meta = header.pop("__metadata__", {})
        ends = [entry["data_offsets"][1] for entry in header.values()]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        found.problem = "its header cannot be read"
        return found
    wanted = 8 + length + max(ends, default=0)
    if found.size < wanted:
        return found.ends_too_soon(f"it has {found.size:,} of {wanted:,} bytes")
    step = next((meta[k] for k in ("step", "global_step") if str(meta.get(k)).isdigit()), None)
    found.step = None if step is None else ("step", int(step))
    return found


def _legacy(file: BinaryIO, found: Outline) -> Outline:
    file.seek(0)
    try:
        found.step, end = inertpickle.legacy(file)
    except (EOFError, pickle.UnpicklingError) as error:
        return found.ends_too_soon(f"its pickle has no end ({error})")
    except Exception:  # what a strange pickle raises has no bounds
        return found
    if end is not None and found.size < end:
        return found.ends_too_soon(f"it has {found.size:,} of {end:,} bytes")
    return found


def _tar(file: BinaryIO, found: Outline) -> Outline:
    """Blocks of 512 bytes, the last two of zeros (POSIX 1003.1, pax)."""
    file.seek(257)
    if file.read(5) != b"ustar":
        return found
    found.format = "tar"
    file.seek(max(0, found.size - 1024))
    if found.size % 512 or file.read(1024).strip(b"\0"):
        return found.ends_too_soon("its archive has no end")
    return found
