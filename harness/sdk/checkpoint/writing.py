"""The part of a save that runs beside the training: shards, records, and the commit by rank 0.

The ranks meet in the temporary folder and nowhere else: each leaves a record of what it wrote, or
of why it could not, and rank 0 makes the checkpoint count once all records are there.
"""

import errno
import os
import pickle
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

from harness import checkpointdir
from harness.checkpoints import File, Manifest, Tensor
from harness.sdk.checkpoint.digest import digest
from harness.sdk.checkpoint.plan import Plan, Planner
from harness.sdk.checkpoint.staging import Snapshot

_LOOK_SECONDS = (0.005, 0.2)
"""Between two looks for the records of others: at first, and at most."""
_LAST_PATIENCE = 30.0
"""Seconds without news from other ranks after which a script that has ended waits no longer."""
_SIGN_SECONDS = 1.0
_SIGN = "alive-"
_INDEX = ".metadata"
_OF_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE}
)


class SaveFailed(Exception):
    """Why a save came to nothing, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A save to be written. `patience`: seconds without news from other ranks until it is given
    up. `draft` is what rank 0 knows of the manifest beforehand."""

    temporary: Path
    root: Path
    rank: int
    world_size: int
    plan: Plan
    rest: Mapping[str, str]
    draft: Manifest
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a rank wrote. `digests` sums its chunks of each tensor; `failure` is empty or why."""

    results: list[WriteResult]
    files: list[File]
    digests: dict[str, int]
    rest: Mapping[str, str]
    failure: str = ""


def write(order: Order, snapshot: Snapshot) -> Path | None:
    """Write this rank's part; on rank 0 commit the whole and return its path.

    Raises SaveFailed. Whatever happens, no manifest is left without a complete checkpoint.
    """
    write_part(order, snapshot)
    return commit(order) if order.rank == 0 else None


def write_part(order: Order, snapshot: Planner) -> None:
    """Write what `snapshot` has for this rank, and leave the record of it. Raises SaveFailed."""
    try:
        leave(order, _write_shards(order, snapshot))
    except (OSError, RuntimeError, ValueError, CheckpointException, MemoryError) as error:
        reason = in_words(error)
        _withdraw(order, reason)
        raise SaveFailed(reason) from error


def commit(order: Order) -> Path:
    """Wait for the records of all ranks, then make the checkpoint count. Raises SaveFailed."""
    try:
        return _commit(order, _records(order))
    except (OSError, ValueError, pickle.UnpicklingError, EOFError) as error:
        raise SaveFailed(in_words(error)) from error
    finally:
        shutil.rmtree(order.temporary, ignore_errors=True)


def in_words(error: BaseException) -> str:
    """One line for an error, without Python's number and path decoration where there are words."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    error = _of_the_disk(error) or error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _of_the_disk(error: BaseException) -> OSError | None:
    """What the disk said, where torch's zip writer, which could not close its archive because of
    it, complains of positions instead."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno in _OF_THE_DISK:
            return at
        at = at.__cause__ or at.__context__
    return None


# --- one rank's part ---------------------------------------------------------------------------


def _write_shards(order: Order, snapshot: Planner) -> Record:
    order.temporary.mkdir(parents=True, exist_ok=True)
    mine = order.plan.mine
    results: list[WriteResult] = []
    if mine.items:
        writer = FileSystemWriter(order.temporary, sync_files=True)
        writer.set_up_storage_writer(order.rank == 0)
        results = writer.write_data(mine, snapshot).wait()
    names = sorted({result.storage_data.relative_path for result in results})
    return Record(
        results=results,
        files=[_file(order.temporary / name) for name in names],
        digests=_digests(order, snapshot),
        rest=order.rest,
    )


def _file(path: Path) -> File:
    return File(name=path.name, bytes=path.stat().st_size, sha256=checkpointdir.checksum(path))


def _digests(order: Order, snapshot: Planner) -> dict[str, int]:
    """Of the memory that was written, not of the file: what loading must bring back."""
    sums: dict[str, int] = {}
    told = time.monotonic()
    for item in order.plan.mine.items:
        if time.monotonic() - told > _SIGN_SECONDS:
            _sign_of_life(order)
            told = time.monotonic()
        if item.tensor_data is not None:
            chunk = snapshot.resolve_data(item)
            assert isinstance(chunk, torch.Tensor)
            name = item.index.fqn
            part = digest(chunk, item.tensor_data.chunk.offsets)
            sums[name] = (sums.get(name, 0) + part) % (1 << 64)
    return sums


def _sign_of_life(order: Order) -> None:
    """News for rank 0 while nothing else is written: a byte more in a file."""
    with (order.temporary / f"{_SIGN}{order.rank:05d}").open("ab") as stream:
        stream.write(b".")


def _record_path(order: Order, rank: int) -> Path:
    return order.temporary / f"record-{rank:05d}"


def leave(order: Order, record: Record) -> None:
    """Tell the others of this rank's part."""
    path = _record_path(order, order.rank)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(pickle.dumps(record))
    temporary.rename(path)


def _withdraw(order: Order, reason: str) -> None:
    """Tell rank 0 that there will be nothing from here; first make room for saying so."""
    try:
        for shard in order.temporary.glob(f"__{order.rank}_*"):
            shard.unlink()
        if order.rank == 0:
            shutil.rmtree(order.temporary)
        else:
            leave(order, Record(results=[], files=[], digests={}, rest={}, failure=reason))
    except OSError:
        pass  # rank 0 will run out of patience instead


# --- the whole, on rank 0 ----------------------------------------------------------------------


def _records(order: Order) -> list[Record]:
    """The records of all ranks, once they are there."""
    found: dict[int, Record] = {}
    wait = _LOOK_SECONDS[0]
    news, since = _news(order), time.monotonic()
    while True:
        for rank in set(range(order.world_size)) - found.keys():
            path = _record_path(order, rank)
            if path.exists():
                found[rank] = pickle.loads(path.read_bytes())
                if found[rank].failure:
                    raise ValueError(f"rank {rank} could not write: {found[rank].failure}")
        if len(found) == order.world_size:
            return [found[rank] for rank in range(order.world_size)]
        now = _news(order)
        if now != news:
            news, since = now, time.monotonic()
        patience = order.patience
        if not threading.main_thread().is_alive():
            patience = min(patience, _LAST_PATIENCE)
        if time.monotonic() - since > patience:
            missing = sorted(set(range(order.world_size)) - found.keys())
            raise ValueError(f"nothing more came from ranks {missing} for {patience:g} s")
        time.sleep(wait)
        wait = min(wait * 1.5, _LOOK_SECONDS[1])


def _news(order: Order) -> tuple[int, int]:
    """Changes while any rank writes: how many files there are, and how many bytes."""
    sizes = []
    for entry in os.scandir(order.temporary):
        try:
            sizes.append(entry.stat().st_size)
        except FileNotFoundError:
            continue  # renamed meanwhile
    return len(sizes), sum(sizes)


def _commit(order: Order, records: list[Record]) -> Path:
    metadata = order.plan.metadata
    assert metadata is not None
    metadata = replace(metadata)
    writer = FileSystemWriter(order.temporary, sync_files=True)
    writer.finish(metadata, [record.results for record in records])
    for rank in range(order.world_size):
        _record_path(order, rank).unlink()
    for sign in order.temporary.glob(f"{_SIGN}*"):
        sign.unlink()
    tensors = {
        name: Tensor(
            dtype=str(entry.properties.dtype).removeprefix("torch."),
            shape=tuple(entry.size),
            digest=f"{sum(r.digests.get(name, 0) for r in records) % (1 << 64):016x}",
        )
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    files = [file for record in records for file in record.files]
    manifest = replace(
        order.draft,
        files=(*files, _file(order.temporary / _INDEX)),
        tensors=tensors,
        rest=_rest(records),
    )
    return checkpointdir.commit(order.temporary, order.root, manifest)


def _rest(records: list[Record]) -> dict[str, tuple[str, ...]]:
    """By thing, the digest of every rank's own state; one alone where all are equal."""
    things: dict[str, Any] = {}
    for thing in sorted({thing for record in records for thing in record.rest}):
        digests = tuple(record.rest.get(thing, "") for record in records)
        things[thing] = digests[:1] if len(set(digests)) == 1 else digests
    return things
