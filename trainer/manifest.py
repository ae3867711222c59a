"""Which checkpoints count: those with a manifest that holds. The standard library is enough."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.trainer.config import Config, ConfigError

SCHEMA = 1
NAME = "manifest.json"
_FOLDER = re.compile(r"step-(\d{6,})")


def folder(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def read(path: Path) -> dict[str, Any]:
    """The manifest of a complete checkpoint.

    Raises ValueError with the reason when it is missing, unreadable, of another schema, or when
    a file it lists is missing or has another size. Contents are checked by `digests_agree`.
    """
    try:
        text = (path / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError("no manifest, the save was interrupted") from None
    except OSError as error:
        raise ValueError(f"manifest: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("the manifest is damaged") from None
    try:
        manifest = json.loads(text)
        schema = int(manifest["schema"])
        if schema == SCHEMA:
            sizes = {str(f["name"]): (int(f["bytes"]), str(f["sha256"])) for f in manifest["files"]}
            _ = (int(manifest["step"]), int(manifest["position"]), dict(manifest["model"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError("the manifest is damaged") from None
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, this version reads {SCHEMA}")
    for name, (size, _digest) in sizes.items():
        file = path / name
        if not file.is_file():
            raise ValueError(f"{name} is missing")
        if file.stat().st_size != size:
            raise ValueError(f"{name} has {file.stat().st_size} bytes, not {size}")
    found: dict[str, Any] = manifest
    return found


def steps_present(root: Path) -> list[int]:
    """Steps of all `step-NNNNNN` folders, complete or not, newest first."""
    if not root.is_dir():
        return []
    matches = (_FOLDER.fullmatch(entry.name) for entry in root.iterdir() if entry.is_dir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def interrupted(root: Path) -> list[Path]:
    """Temporary folders of saves that never ended."""
    return sorted(root.glob("step-*.tmp")) if root.is_dir() else []


def digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def digests_agree(path: Path, manifest: dict[str, Any], part: int = 0, parts: int = 1) -> bool:
    """Whether every `parts`-th file from `part` on has the digest the manifest gives."""
    mine = manifest["files"][part::parts]
    return all(digest(path / f["name"]) == f["sha256"] for f in mine)


def preflight(config: Config) -> None:
    """Make the folder; refuse, before any group exists, what loading or saving would trip over.

    Raises ConfigError.
    """
    if not config.checkpoint.dir:
        return
    root = Path(config.checkpoint.dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--checkpoint-dir {root}: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(f"--checkpoint-dir {root}: not writable")
    for step in steps_present(root):
        try:
            before = read(folder(root, step))["model"]
        except ValueError:
            continue
        for name, value in asdict(config.model).items():
            if before.get(name) != value:
                raise ConfigError(
                    f"--checkpoint-dir {root}: step {step} was saved with {name} "
                    f"{before.get(name)}, this run has {value}; use that or another folder"
                )
        return
