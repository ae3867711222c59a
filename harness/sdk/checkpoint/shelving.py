"""How a rank's state lies in a slot of memory, and the index that describes it.

The index is plain JSON: agents carry it between nodes, and whoever reads it may not be the one who
wrote it. The data of a slot are the rank's own chunks of all its tensors, replicas included, then
what it keeps for itself.
"""

import hashlib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from harness.checkpoints import Tensor
from harness.sdk.checkpoint.digest import digest
from harness.worker.memoryfile import BadMemory, MemoryFile, Slot

SCHEMA = 1
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk of a tensor: where it lies in the slot, and where in the tensor of shape `whole`."""

    name: str
    sharded: bool
    dtype: str
    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: int
    digest: str = ""

    @property
    def type(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def bytes(self) -> int:
        return torch.Size(self.sizes).numel() * self.type.itemsize

    @property
    def key(self) -> tuple[object, ...]:
        """What it is, wherever it lies and whatever its numbers."""
        return self.name, self.dtype, self.whole, self.offsets, self.sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the rank keeps for itself of a thing; `digest` is that of the manifest."""

    thing: str
    at: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All there is to know of a slot. `root` is the folder of the checkpoints, `buffers` names
    tensors of which the lowest rank's counts, `values` are what JSON can express."""

    attempt: int
    step: int
    rank: int
    world_size: int
    root: str
    torch: str
    mesh: Mapping[str, int]
    values: Mapping[str, Any]
    buffers: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    kept: tuple[Kept, ...]

    def encoded(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """As a manifest names them; without digests of the whole, which nobody here knows."""
        return {c.name: Tensor(dtype=c.dtype, shape=c.whole, digest="") for c in self.chunks}


def decoded(raw: dict[str, Any]) -> Index:
    """The way back from `Index.encoded`. Raises BadMemory."""
    try:
        if raw.pop("schema") != SCHEMA:
            raise BadMemory("another version of Harness staged it")
        chunks = tuple(_chunk(chunk) for chunk in raw.pop("chunks"))
        kept = tuple(Kept(**one) for one in raw.pop("kept"))
        return Index(**{**raw, "buffers": tuple(raw["buffers"])}, chunks=chunks, kept=kept)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadMemory(f"its index is damaged: {error}") from None


def _chunk(raw: dict[str, Any]) -> Chunk:
    shapes = {name: tuple(raw[name]) for name in ("whole", "offsets", "sizes")}
    chunk = Chunk(**{**raw, **shapes})
    if not isinstance(chunk.type, torch.dtype) or min(chunk.at, *chunk.sizes, 0) < 0:
        raise ValueError(f"{chunk.name} cannot be")
    return chunk


def read(file: MemoryFile, slot: Slot) -> Index:
    """The index of a slot. Raises BadMemory."""
    index = decoded(file.index(slot))
    ends = [chunk.at + chunk.bytes for chunk in index.chunks]
    ends += [one.at + one.bytes for one in index.kept]
    if max(ends, default=0) > slot.data_bytes or (index.attempt, index.step) != (
        slot.attempt,
        slot.step,
    ):
        raise BadMemory("its index speaks of something else")
    return index


class Layout:
    """Places one thing after the other in a slot."""

    def __init__(self) -> None:
        self.end = 0

    def place(self, size: int) -> int:
        at = -(-self.end // _ALIGN) * _ALIGN
        self.end = at + size
        return at


def chunk_of(item: WriteItem, live: torch.Tensor, layout: Layout) -> Chunk:
    """The chunk that `item` of a plan is, given room."""
    data = item.tensor_data
    assert data is not None
    return Chunk(
        name=item.index.fqn,
        sharded=item.type == WriteItemType.SHARD,
        dtype=str(live.dtype).removeprefix("torch."),
        whole=tuple(data.size),
        offsets=tuple(data.chunk.offsets),
        sizes=tuple(live.shape),
        at=layout.place(live.numel() * live.dtype.itemsize),
    )


def item_of(chunk: Chunk) -> WriteItem:
    """The item of a plan that `chunk` is; the way back from `chunk_of`."""
    offsets = torch.Size(chunk.offsets)
    return WriteItem(
        index=MetadataIndex(chunk.name, offsets),
        type=WriteItemType.SHARD if chunk.sharded else WriteItemType.TENSOR,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=offsets, sizes=torch.Size(chunk.sizes)),
            properties=TensorProperties(dtype=chunk.type),
            size=torch.Size(chunk.whole),
        ),
    )


def tensor_of(chunk: Chunk, view: mmap.mmap) -> torch.Tensor:
    """The chunk's place in the slot as a tensor."""
    if not chunk.bytes:
        return torch.empty(chunk.sizes, dtype=chunk.type)
    flat = torch.frombuffer(view, dtype=torch.uint8, count=chunk.bytes, offset=chunk.at)
    return flat.view(chunk.type).view(chunk.sizes)


def digest_of(chunk: Chunk, view: mmap.mmap) -> str:
    return f"{digest(tensor_of(chunk, view), chunk.offsets):016x}"


def kept_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def shard_key(chunks: Iterable[Chunk]) -> int:
    """63 bits of what parts of which tensors these are: equal on replicas."""
    text = repr([chunk.key for chunk in chunks]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def altered(index: Index, view: mmap.mmap) -> str:
    """What in the slot is not what was staged, in words; empty when all of it is. Reads it all."""
    for chunk in index.chunks:
        if digest_of(chunk, view) != chunk.digest:
            return f"{chunk.name} is not what was staged (digest)"
    for one in index.kept:
        if kept_digest(view[one.at : one.at + one.bytes]) != one.digest:
            return f"{one.thing} is not what was staged (checksum)"
    return ""
