"""A run in one file that can be given away: packed with what explains it, redacted; unpacked where
it is read. A tar archive, gzip; its first member `bundle.json` says what it is and holds.
"""

import atexit
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harness import journal, runtimedir
from harness.errors import UsageError
from harness.redact import Redactor

SCHEMA = 1
MANIFEST = "bundle.json"
SUFFIX = ".bundle.tar.gz"
_PREFIX = "harness-bundle-"
_KIND = "harness bundle"
_MOST_UNPACKED = 16 << 30
_MOST_MEMBERS = 1_000_000
_LINES = 1 << 20


class BundleError(UsageError):
    """A file that is no bundle, or cannot be written."""

    code = "H302"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to pack: `name` in the bundle. Of a long one only the last `most` bytes are taken."""

    path: Path
    name: str
    most: int | None = None


@dataclass(slots=True, kw_only=True)
class Packed:
    """What became of it."""

    files: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bytes: int = 0


def pack(target: Path, sources: Iterable[Source], redactor: Redactor, **facts: object) -> Packed:
    """Write the bundle `target`; it is there whole or not at all. `facts` go into its manifest.

    Redacted files are made beside it first: the manifest stands at the front and counts them.
    """
    packed = Packed()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix=".harness-bundle-", dir=target.parent) as staging:
            for at, source in enumerate(sources):
                _stage(source, Path(staging, str(at)), redactor, packed)
            manifest = {
                "schema": SCHEMA,
                "kind": _KIND,
                "made_ns": time.time_ns(),
                **facts,
                "redacted": dict(sorted(redactor.counts.items())),
                "files": [{k: v for k, v in each.items() if k != "at"} for each in packed.files],
                "left_out": packed.left_out,
            }
            with tarfile.open(partial, "w:gz", compresslevel=6) as archive:
                _add(archive, MANIFEST, json.dumps(manifest, indent=1).encode())
                for each in packed.files:
                    archive.add(each["at"], arcname=each["name"], filter=_nobody)
        partial.replace(target)
        packed.bytes = target.stat().st_size
    except OSError as error:
        raise BundleError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return packed


def _stage(source: Source, at: Path, redactor: Redactor, packed: Packed) -> None:
    try:
        size = source.path.stat().st_size
        cut = source.most is not None and size > source.most
        with at.open("w", encoding="utf-8") as file:
            for text in _redacted(
                source, size - source.most if cut and source.most else 0, redactor
            ):
                file.write(text)
    except OSError as error:
        packed.left_out.append(f"{source.name}: {error.strerror}")
        return
    entry = {"name": source.name, "at": at, "bytes": at.stat().st_size, "whole": not cut}
    packed.files.append(entry)


def _redacted(source: Source, start: int, redactor: Redactor) -> Iterator[str]:
    """The text of a file, line by line; a JSON file as one value."""
    if source.path.suffix == ".json":
        yield redactor.json_text(source.path.read_text(encoding="utf-8", errors="replace"))
        return
    one = redactor.json_text if source.path.suffix == ".jsonl" else redactor.text
    with source.path.open("rb") as file:
        if start:
            file.seek(start)
            file.readline()  # it begins in the middle of one
        while lines := file.readlines(_LINES):
            for line in lines:
                text = line.decode("utf-8", "replace")
                body = text.rstrip("\n")
                yield one(body) + text[len(body) :]


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(data), int(time.time())
    archive.addfile(member, io.BytesIO(data))


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def is_bundle(path: Path) -> bool:
    """Whether `path` looks like one: compressed, with the manifest in front."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
            return first is not None and first.name == MANIFEST
    except (OSError, tarfile.TarError, EOFError, ValueError):
        return False


def unpack(path: Path) -> Path:
    """The run in the bundle `path`, in a directory that is removed when this process ends, or by
    the next that unpacks one, where it was killed.

    Nothing in the archive can reach beyond it: links, devices and names that lead out are refused.
    """
    parent = Path(tempfile.gettempdir())
    runtimedir.remove_abandoned(parent, _PREFIX, sign=".")
    folder, _ = runtimedir.held(parent, _PREFIX)  # to the end of this process
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(path, "r:gz") as archive:
            name = _run_name(archive)
            run = folder / name
            _extract(archive, run, path)
    except (OSError, tarfile.TarError, EOFError, ValueError, KeyError) as error:
        raise BundleError(
            f"{path} is damaged or no bundle: {error}", help="have it made again: harness bundle"
        ) from None
    if not (run / journal.FILE_NAME).is_file():
        raise BundleError(f"{path} has no {journal.FILE_NAME}", help="have it made again")
    return run


def _run_name(archive: tarfile.TarFile) -> str:
    first = archive.next()
    file = None if first is None or first.name != MANIFEST else archive.extractfile(first)
    if file is None:
        raise ValueError(f"{MANIFEST} is not in front")
    manifest = json.load(file)
    if manifest["schema"] != SCHEMA or manifest["kind"] != _KIND:
        raise ValueError(f"schema {manifest['schema']}, this version reads schema {SCHEMA}")
    return PurePosixPath(str(manifest["run"])).name or "run"


def _extract(archive: tarfile.TarFile, run: Path, path: Path) -> None:
    size = 0
    for count, member in enumerate(archive):
        parts = PurePosixPath(member.name)
        size += member.size
        if not member.isfile() or parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"{member.name!r} is no plain file below it")
        if size > _MOST_UNPACKED or count > _MOST_MEMBERS:
            raise ValueError("it is too large")
        target = run / parts
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)
