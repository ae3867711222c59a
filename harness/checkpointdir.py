"""A folder of checkpoints on disk: which of them count, why others do not, how one gets in by a
single rename, and how old ones leave. The standard library is enough.

    checkpoints/step-000020/manifest.json     no manifest, no checkpoint
    checkpoints/step-000030.tmp-…/            a save under way, or one that was interrupted
    checkpoints/step-000020.old/              being replaced by another save of the same step
"""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints import Manifest, certified, decode, encode, expendable, objection

MANIFEST = "manifest.json"
HELD = "held"
"""Says for whom a checkpoint must stay: numbers saved after it are being looked into."""
_FOLDER = re.compile(r"step-(\d{6,})")
_UNFINISHED = re.compile(r"step-\d{6,}\.tmp-\w+")
_REPLACED = re.compile(r"(step-\d{6,})\.old")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint's folder: its manifest where it counts, otherwise the reason in words."""

    step: int
    path: Path
    manifest: Manifest | None
    reason: str = ""


def folder(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def steps_present(root: Path) -> list[int]:
    """Steps of all folders, complete or not, newest first."""
    matches = (_FOLDER.fullmatch(path.name) for path in _folders(root))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def unfinished(root: Path) -> list[Path]:
    """Folders of saves that have not ended, oldest step first."""
    return sorted(path for path in _folders(root) if _UNFINISHED.fullmatch(path.name))


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def look(root: Path, step: int) -> Found:
    """The checkpoint of `step`, judged by its manifest and the sizes of its files."""
    path = folder(root, step)
    try:
        manifest = decode(_text(path / MANIFEST))
        sizes = {entry.name: entry.stat().st_size for entry in path.iterdir() if entry.is_file()}
        reason = objection(manifest, step=step, sizes=sizes)
    except ValueError as error:
        return Found(step=step, path=path, manifest=None, reason=str(error))
    except OSError as error:
        words = error.strerror or str(error)
        return Found(step=step, path=path, manifest=None, reason=f"cannot be read: {words}")
    return Found(step=step, path=path, manifest=None if reason else manifest, reason=reason)


def is_finished(found: Found) -> bool:
    """Whether its save came to its end: a folder without a manifest was never a checkpoint."""
    return (found.path / MANIFEST).exists()


def look_at_all(root: Path) -> list[Found]:
    """Every checkpoint, newest first."""
    return [look(root, step) for step in steps_present(root)]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError("no manifest, the save was interrupted") from None
    except UnicodeDecodeError:
        raise ValueError("the manifest is damaged") from None


def checksum(file: Path) -> str:
    """SHA-256 of a file in hex."""
    found = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def verify(found: Found, part: int = 0, parts: int = 1) -> str:
    """Why the files are not what was written, in words; empty when they are.

    Reads every `parts`-th file from `part` on, so that `parts` ranks together read each once.
    """
    if found.manifest is None:
        return found.reason
    for file in found.manifest.files[part::parts]:
        try:
            same = checksum(found.path / file.name) == file.sha256
        except OSError as error:
            return f"{file.name} cannot be read: {error.strerror or error}"
        if not same:
            return f"{file.name} is not what was written (checksum)"
    return ""


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Put the manifest into a checkpoint's folder, whole or not at all, and on the disk."""
    temporary = path / f"{MANIFEST}.new"
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(encode(manifest))
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path / MANIFEST)
    sync(path)


def commit(temporary: Path, root: Path, manifest: Manifest) -> Path:
    """Make a finished save count: manifest last, one rename, both on the disk."""
    write_manifest(temporary, manifest)
    final = folder(root, manifest.step)
    replaced = final.with_name(f"{final.name}.old")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    temporary.rename(final)
    sync(root)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def restore_replaced(root: Path) -> None:
    """Bring back what was being replaced when the process died between the renames of `commit`."""
    for path in _folders(root):
        match = _REPLACED.fullmatch(path.name)
        if match and not (root / match[1]).exists():
            path.rename(root / match[1])


def tidy(root: Path, *, spare: Path) -> None:
    """Remove what interrupted saves left. Only for the one process that commits here, which is
    about to write `spare`: a reader would take away what another run is writing."""
    restore_replaced(root)
    left = [path for path in _folders(root) if _REPLACED.fullmatch(path.name)]
    for path in [*left, *unfinished(root)]:
        if path != spare:
            shutil.rmtree(path, ignore_errors=True)


def certify(path: Path, by: str) -> Manifest:
    """Write into a checkpoint's manifest that `by` vouches for it.

    Raises ValueError when there is no sound manifest, OSError when it cannot be written.
    """
    manifest = certified(decode(_text(path / MANIFEST)), by)
    write_manifest(path, manifest)
    return manifest


def hold(path: Path, by: str) -> None:
    """Have retention leave a checkpoint alone for as long as `by` saves here. Raises OSError."""
    (path / HELD).write_text(by, encoding="utf-8")


def held_by(path: Path) -> str:
    """Empty where nobody holds it."""
    try:
        return (path / HELD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def remove(path: Path) -> None:
    """Delete a checkpoint; it stops counting at once, should the rest be interrupted."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)


def prune(
    root: Path,
    *,
    keep: int,
    keep_every: int = 0,
    newest: int | None = None,
    holder: str | None = None,
    awaited: bool = False,
    check: bool = False,
    dry_run: bool = False,
) -> list[int]:
    """Delete what retention lets go; returns the steps, oldest first.

    Steps above `newest` were refused by the run that saves here now: they neither count nor go.
    What somebody holds stays; of `holder`, only what that one does. `awaited` as of `expendable`.
    With `check`, files are read, and checkpoints with other bytes than were written neither count
    nor go. Raises OSError.
    """
    sound = [
        found
        for found in look_at_all(root)
        if found.manifest is not None and (newest is None or found.step <= newest)
    ]
    if check:
        sound = [found for found in sound if not verify(found)]
    manifests = [found.manifest for found in sound if found.manifest is not None]
    by = {found.step: held_by(found.path) for found in sound}
    held = [step for step, who in by.items() if who and holder in (None, who)]
    gone = expendable(manifests, keep=keep, keep_every=keep_every, held=held, awaited=awaited)
    for step in [] if dry_run else gone:
        remove(folder(root, step))
    return gone
