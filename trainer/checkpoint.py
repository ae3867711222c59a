"""Sharded checkpoints that are complete or do not count.

`DIR/step-000020/` appears by one rename, after every shard and the manifest are on disk. The
manifest holds the size and digest of each file, so a torn or altered checkpoint is passed over,
aloud, for the next older one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from harness.trainer import manifest, seeding
from harness.trainer.config import Config, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a checkpoint says beside tensors: completed steps and consumed sequences."""

    step: int
    position: int


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tensors(parts: list[nn.Module], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and optimizer state of this rank under names that no layout changes.

    `model.NAME` and `optim.KIND.NAME`, where NAME is the parameter's and KIND is exp_avg and so on.
    """
    tensors: dict[str, torch.Tensor] = {}
    for part in parts:
        for name, parameter in part.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            for kind, value in optimizer.state.get(parameter, {}).items():
                tensors[f"optim.{kind}.{name}"] = value
    return tensors


def contents(reader: FileSystemReader) -> dict[str, TensorStorageMetadata]:
    """Shape and dtype of every tensor in a checkpoint, by name."""
    entries = reader.read_metadata().state_dict_metadata
    return {n: e for n, e in entries.items() if isinstance(e, TensorStorageMetadata)}


def load_alone(tensors: dict[str, torch.Tensor], reader: FileSystemReader) -> None:
    """Fill these tensors from a checkpoint without a word to the other ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=True)


def _fresh_state(
    parts: list[nn.Module],
    optimizer: torch.optim.Optimizer,
    saved: dict[str, TensorStorageMetadata],
) -> None:
    """Give the optimizer empty tensors for every state the checkpoint holds."""
    kinds = sorted({key.split(".")[1] for key in saved if key.startswith("optim.")})
    for part in parts:
        for name, parameter in part.named_parameters():
            for kind in kinds:
                entry = saved[f"optim.{kind}.{name}"]
                dtype = entry.properties.dtype
                if tuple(entry.size) == tuple(parameter.shape):
                    value = torch.zeros_like(parameter, dtype=dtype).detach()
                else:
                    value = torch.zeros(entry.size, dtype=dtype, device=parameter.device)
                optimizer.state[parameter][kind] = value


class Checkpoints:
    """Saves and finds the checkpoints of one run; every method is called on all ranks."""

    def __init__(self, config: Config, sizes: Layout, device: torch.device) -> None:
        self._config = config
        self._sizes = sizes
        self._device = device
        self._root = Path(config.checkpoint.dir)
        self._rank = dist.get_rank()

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, flush=True)

    def _from_first(self, value: Any) -> Any:
        """Rank 0's value on every rank; also the point that all ranks have reached."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def save(
        self, parts: list[nn.Module], optimizer: torch.optim.Optimizer, at: Progress
    ) -> tuple[Path, float]:
        """Write `step-NNNNNN`; returns its path and the seconds it took.

        When it returns, on any rank, the checkpoint is complete and on disk.
        """
        began = time.perf_counter()
        final = manifest.folder(self._root, at.step)
        temporary = final.with_name(final.name + ".tmp")
        if self._rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        tensors = _tensors(parts, optimizer)
        for name, state in seeding.capture(self._device).items():
            tensors[f"rng.{self._rank}.{name}"] = state
        # Its first exchange ends only when rank 0 takes part, so nobody writes before the mkdir.
        save(tensors, storage_writer=FileSystemWriter(temporary, sync_files=True))
        mine = [
            {"name": file.name, "bytes": file.stat().st_size, "sha256": manifest.digest(file)}
            for file in sorted(temporary.glob(f"__{self._rank}_*.distcp"))
        ]
        gathered: list[Any] | None = [None] * dist.get_world_size() if self._rank == 0 else None
        dist.gather_object(mine, gathered, dst=0)
        if gathered is not None:
            self._commit(temporary, final, at, [f for files in gathered for f in files])
        self._from_first(None)
        return final, time.perf_counter() - began

    def _commit(
        self, temporary: Path, final: Path, at: Progress, files: list[dict[str, Any]]
    ) -> None:
        index = temporary / ".metadata"
        files.append(
            {"name": index.name, "bytes": index.stat().st_size, "sha256": manifest.digest(index)}
        )
        record = {
            "schema": manifest.SCHEMA,
            "step": at.step,
            "position": at.position,
            "world_size": dist.get_world_size(),
            "mesh": asdict(self._sizes),
            "model": asdict(self._config.model),
            "seed": self._config.run.seed,
            "torch": torch.__version__,
            "files": files,
        }
        with (temporary / manifest.NAME).open("w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        _sync(temporary)
        if final.exists():  # one that was passed over at the start, or this would not be written
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(final.parent)
        self._prune(at.step)

    def _prune(self, newest: int) -> None:
        """Keep the last complete checkpoints; drop older ones and what was interrupted.

        What is newer than the one just saved was passed over at the start and does not count.
        """
        kept = 0
        for step in manifest.steps_present(self._root):
            if step > newest:
                continue
            path = manifest.folder(self._root, step)
            try:
                manifest.read(path)
            except ValueError:
                continue
            kept += 1
            if kept > self._config.checkpoint.keep:
                # Without its manifest it no longer counts, should we die before the rest is gone.
                (path / manifest.NAME).unlink()
                shutil.rmtree(path)
        for path in manifest.interrupted(self._root):
            shutil.rmtree(path)

    def _newest(self) -> int | None:
        """Newest checkpoint that is complete and unaltered; says which ones were passed over."""
        for path in manifest.interrupted(self._root):
            self._say(f"checkpoint {path} passed over: the save was interrupted")
        steps = self._from_first(manifest.steps_present(self._root))
        for step in steps:
            path = manifest.folder(self._root, step)
            reason = ""
            record = None
            try:
                record = manifest.read(path)
            except ValueError as error:
                reason = str(error)
            reason = self._from_first(reason)
            if not reason:
                good = record is not None and manifest.digests_agree(
                    path, record, self._rank, dist.get_world_size()
                )
                verdict = torch.tensor(int(good), device=self._device)
                dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
                if verdict.item():
                    return int(step)
                reason = "a file is not what was written (digest)"
            self._say(f"checkpoint {path} passed over: {reason}")
        return None

    def resume(
        self, parts: list[nn.Module], optimizer: torch.optim.Optimizer
    ) -> tuple[Progress, Path] | None:
        """Load the newest good checkpoint in place; None when there is none."""
        step = self._newest()
        if step is None:
            return None
        path = manifest.folder(self._root, step)
        record = manifest.read(path)
        reader = FileSystemReader(path)
        saved = contents(reader)
        _fresh_state(parts, optimizer, saved)
        tensors = _tensors(parts, optimizer)
        states = seeding.capture(self._device)
        names = {name: f"rng.{self._rank}.{name}" for name in states}
        # At another world size a rank may have no state of its own; its seeded one stands.
        mine = all(key in saved and saved[key].size == states[n].shape for n, key in names.items())
        if mine:
            tensors |= {key: states[name] for name, key in names.items()}
        load_alone(tensors, reader)
        if mine:
            seeding.restore(states, self._device)
        return Progress(step=record["step"], position=record["position"]), path
