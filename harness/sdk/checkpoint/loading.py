"""From a checkpoint on disk back into the things of a script, verified on the way."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from harness.checkpointdir import Found
from harness.checkpoints import Manifest, Tensor
from harness.sdk.checkpoint import things as kinds
from harness.sdk.checkpoint.agreement import Agreement
from harness.sdk.checkpoint.digest import digest
from harness.sdk.checkpoint.plan import items, rest_key
from harness.sdk.checkpoint.things import Things
from harness.sdk.checkpoint.writing import in_words


def read(path: Path, content: dict[str, Any]) -> None:
    """Fill these tensors, and replace what is no tensor, from the checkpoint's shards; this rank
    alone, without a word to the others. Raises CheckpointException, OSError and what torch raises.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        load(content, storage_reader=FileSystemReader(path), planner=planner, no_dist=True)


def whole_tensors(found: Found) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole and on the CPU, whatever layout saved them.

    Raises ValueError where one is not what was saved, OSError where it cannot be read.
    """
    if found.manifest is None:
        raise ValueError(found.reason)
    content: dict[str, Any] = {
        name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        for name, entry in found.manifest.tensors.items()
    }
    try:
        read(found.path, content)
    except (CheckpointException, RuntimeError) as error:
        raise ValueError(in_words(error)) from error
    for name, entry in found.manifest.tensors.items():
        if digest(content[name]) != int(entry.digest, 16):
            raise ValueError(f"{name} is not what was saved (digest)")
    return content


def prepared(
    things: Things, manifest: Manifest, ranks: Agreement
) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors to load into, and why the checkpoint does not fit these things, in words and the
    same on all ranks; empty when it does."""
    targets: dict[str, torch.Tensor] = {}
    reason = ""
    try:
        targets = kinds.targets(things, manifest.tensors)
    except Exception as error:  # the border to the script's own models; no rank may be left waiting
        reason = in_words(error)
    told = [reason for reason in ranks.from_all(reason) if reason]
    return targets, told[0] if told else _misfit(targets, things, manifest, ranks)


def _misfit(
    targets: Mapping[str, torch.Tensor], things: Things, manifest: Manifest, ranks: Agreement
) -> str:
    saved = manifest.tensors
    reasons = [_unlike(name, target, saved.get(name)) for name, target in targets.items()]
    # A rank may lack things that others have, so each says what it would read.
    absent = [
        thing
        for thing in [*things.modules, *things.optimizers, *things.stateful]
        if thing not in manifest.rest and not any(n.startswith(f"{thing}.") for n in saved)
    ]
    has = sorted({name.partition(".")[0] for name in saved} | manifest.rest.keys())
    own = (kinds.RANDOM, kinds.VALUES)
    if absent:
        held = ", ".join(name for name in has if name not in own) or "nothing"
        reasons.insert(0, f"it has no {absent[0]}, it has {held}")
    told = [reason for reason in ranks.from_all(next(filter(None, reasons), "")) if reason]
    if told:
        return str(told[0])
    return _uncovered(targets, things, saved, ranks)


def _unlike(name: str, target: torch.Tensor, saved: Tensor | None) -> str:
    if saved is None:
        return f"it has no {name}"
    now = (str(target.dtype).removeprefix("torch."), tuple(target.shape))
    if now == (saved.dtype, saved.shape):
        return ""
    return f"{name} was saved as {saved.dtype} {saved.shape}, now it is {now[0]} {now[1]}"


def _uncovered(
    targets: Mapping[str, torch.Tensor],
    things: Things,
    saved: Mapping[str, Tensor],
    ranks: Agreement,
) -> str:
    """A tensor of the asked things that no rank would read: it would be lost without a word."""
    asked = {*things.modules, *things.optimizers}
    wanted = sorted(name for name in saved if name.partition(".")[0] in asked)
    readers = ranks.summed([int(name in targets) for name in wanted])
    unread = [name for name, count in zip(wanted, readers, strict=True) if not count]
    if not unread:
        return ""
    thing = unread[0].partition(".")[0]
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return f"it has {unread[0]}{more}, which {thing} does not have now"


def fill(
    found: Found, targets: dict[str, torch.Tensor], kept: Sequence[str], ranks: Agreement
) -> tuple[dict[str, Any], str]:
    """Load tensors in place and the `kept` entries beside them; verify the tensors by digest.

    Returns the entries, and why the checkpoint is refused, in words and the same on all ranks.
    """
    assert found.manifest is not None
    content: dict[str, Any] = {**targets, **dict.fromkeys(kept, b"")}
    reason = ""
    try:
        read(found.path, content)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError, EOFError) as error:
        reason = f"it cannot be loaded: {in_words(error)}"
    told = [reason for reason in ranks.from_all(reason) if reason]
    if told:
        return {}, str(told[0])
    return {name: content[name] for name in kept}, _altered(targets, found.manifest, ranks)


def _altered(targets: Mapping[str, torch.Tensor], manifest: Manifest, ranks: Agreement) -> str:
    """A loaded tensor whose elements are not those that were saved; all copies count.

    Digests of shards add up: n whole copies among the ranks make n times the digest.
    """
    order = sorted(manifest.tensors)
    sums, counts = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    for item, local in items(targets):
        assert item.tensor_data is not None
        name = item.index.fqn
        part = digest(local.detach().cpu(), item.tensor_data.chunk.offsets)
        sums[name] = (sums[name] + part) % (1 << 64)
        counts[name] += local.numel()
    totals = ranks.summed([*sums.values(), *counts.values()])
    for name, total, count in zip(order, totals, totals[len(order) :], strict=False):
        entry = manifest.tensors[name]
        elements = torch.Size(entry.shape).numel()
        copies = count // elements if elements else 0
        if count != copies * elements:
            return f"of {name} only a part was loaded"
        if total != copies * int(entry.digest, 16) % (1 << 64):
            return f"{name} is not what was saved (digest)"
    return ""


def kept_by(
    things: Things, manifest: Manifest, ranks: Agreement, mesh: Mapping[str, int]
) -> tuple[dict[str, list[str]], list[str]]:
    """For every thing, the entries this rank reads of what ranks kept for themselves, its own
    first; and, in sentences on rank 0, what cannot be given back."""
    same = manifest.world_size == ranks.size and dict(manifest.mesh) == dict(mesh)
    entries: dict[str, list[str]] = {}
    lost: list[str] = []
    gone_things: list[str] = []
    named = {**things.modules, **things.optimizers, **things.stateful}
    for thing in [*named, kinds.VALUES, kinds.RANDOM]:
        digests = manifest.rest.get(thing)
        if digests is None:
            continue
        by_name = thing in things.modules or thing in things.optimizers
        first = [ranks.rank] if ranks.rank < manifest.world_size else []
        # Saved from memory after the rank's own had gone with its node.
        gone = same and len(digests) > 1 and not digests[ranks.rank]
        if by_name:
            others = [] if not gone and (same or len(digests) == 1) else range(manifest.world_size)
            order = list(dict.fromkeys([*(first if same else first or [0]), *others]))
        elif gone and (thing in things.stateful or thing == kinds.RANDOM):
            gone_things.append(thing)
            continue
        elif same or len(digests) == 1:
            order = first if same else [0]
        else:
            lost.append(thing)
            continue
        entries[thing] = [
            rest_key(rank, thing) for rank in order if len(digests) == 1 or digests[rank]
        ]
    told = []
    if lost:
        told.append(
            f"{', '.join(lost)} of {manifest.world_size} ranks cannot be shared out to another "
            "layout; each rank keeps its own"
        )
    for rank, missing in enumerate(ranks.from_all(gone_things)):
        if missing:
            told.append(f"{', '.join(missing)} of rank {rank} went with its node; it keeps its own")
    return {thing: keys for thing, keys in entries.items() if keys}, told


def mesh_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Names and sizes of the axes of the meshes that these tensors are spread over."""
    axes: dict[str, int] = {}
    for tensor in tensors.values():
        if isinstance(tensor, DTensor):
            mesh = tensor.device_mesh
            for place, name in enumerate(mesh.mesh_dim_names or ()):
                axes.setdefault(name, mesh.size(place))
    return axes
