"""A generation in memory, written as a regular checkpoint by processes that the agents start.

Each writes the parts of the ranks whose memory its node holds. They meet in the temporary folder,
as the ranks of a save do: first each leaves the index of every rank it speaks for, from which all
make the same plan; then shards and records; then the one that speaks for the lowest rank makes the
checkpoint count. Ranks whose memory is nowhere are stood in for by their replicas.
"""

import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from harness import checkpointdir
from harness.checkpoints import Manifest
from harness.sdk.checkpoint import shelving, things
from harness.sdk.checkpoint.plan import Plan, Planner, rest_key, shared_out, without_later_buffers
from harness.sdk.checkpoint.shelving import Index
from harness.sdk.checkpoint.writing import (
    Order,
    Record,
    SaveFailed,
    commit,
    in_words,
    leave,
    write_part,
)
from harness.worker import process
from harness.worker.memoryfile import BadMemory, MemoryFile

_PATIENCE = 60.0
"""Seconds without news from the other nodes until it is given up."""
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the agent asks for. `files` are descriptors by rank; `twins` says, by rank whose memory
    is nowhere, which one stands in."""

    files: Mapping[int, int]
    attempt: int
    step: int
    world_size: int
    twins: Mapping[int, int]
    token: str
    answer: str

    @classmethod
    def from_json(cls, text: str) -> "Request":
        raw = json.loads(text)
        files = {int(rank): descriptor for rank, descriptor in raw["files"].items()}
        return cls(**{**raw, "files": files, "twins": dict(raw["twins"])})


class Shelf(Planner):
    """Hands the parts of one rank to DCP's writer, straight from memory."""

    def __init__(self, file: MemoryFile, number: int, index: Index) -> None:
        super().__init__()
        self._view = file.view(number, 1)
        self._chunks = {(chunk.name, chunk.offsets): chunk for chunk in index.chunks}
        self._kept = {one.thing: one for one in index.kept}

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        name = write_item.index.fqn
        if write_item.type == WriteItemType.BYTE_IO:
            one = self._kept[name.split(".", 2)[2]]
            return io.BytesIO(self._view[one.at : one.at + one.bytes])
        offset = write_item.index.offset
        assert offset is not None
        return shelving.tensor_of(self._chunks[name, tuple(offset)], self._view)


def main() -> None:
    """Entry. `argv`: pid of the agent, the request. The result goes to its file `answer`."""
    if not process.bind_to_parent(int(sys.argv[1])):
        return
    request = Request.from_json(sys.argv[2])
    result: dict[str, str] = {}
    try:
        path = keep(request)
        result = {} if path is None else {"path": str(path)}
    except (SaveFailed, BadMemory, OSError, ValueError) as error:
        result = {"why": in_words(error)}
    temporary = f"{request.answer}.new"
    Path(temporary).write_text(json.dumps(result), encoding="utf-8")
    os.rename(temporary, request.answer)


def keep(request: Request) -> Path | None:
    """Write this node's part; the path of the checkpoint on the node that made it count.

    Raises SaveFailed, BadMemory, OSError, ValueError.
    """
    torch.set_num_threads(1)
    mine, shelves, reason = _opened(request)
    if not mine:
        raise BadMemory(reason)
    root = Path(next(iter(mine.values())).root)
    final = checkpointdir.folder(root, request.step)
    temporary = final.with_name(f"{final.name}.tmp-{request.token}")
    temporary.mkdir(parents=True, exist_ok=True)
    for rank, index in mine.items():
        _put(temporary, rank, {"failure": reason} if reason else index.encoded())
    if reason:
        raise BadMemory(reason)
    indices = _gathered(temporary, request, mine)
    orders = _orders(request, indices, temporary, root)
    first = min(indices)
    for rank in mine:
        write_part(orders[rank], shelves[rank])
    if first not in mine:
        return None
    _stand_in(orders, indices, request)
    for path in temporary.glob("index-*"):
        path.unlink()
    return commit(orders[first])


def _opened(request: Request) -> tuple[dict[int, Index], dict[int, Shelf], str]:
    """By rank, what is in memory, verified; and what is wrong with it, in words."""
    found: dict[int, Index] = {}
    shelves: dict[int, Shelf] = {}
    reason = ""
    for rank, descriptor in sorted(request.files.items()):
        file = MemoryFile(descriptor)
        slot = file.find(request.attempt, request.step)
        if slot is None:
            reason = reason or f"rank {rank}'s part is not there any more"
            continue
        try:
            found[rank] = index = shelving.read(file, slot)
            why = shelving.altered(index, file.view(slot.number, slot.data_bytes or 1))
        except BadMemory as error:
            why = str(error)
        if why:
            reason = reason or f"rank {rank}: {why}"
            continue
        shelves[rank] = Shelf(file, slot.number, index)
    return found, shelves, reason


def _index_path(temporary: Path, rank: int) -> Path:
    return temporary / f"index-{rank:05d}.json"


def _put(temporary: Path, rank: int, content: Mapping[str, object]) -> None:
    path = _index_path(temporary, rank)
    path.with_suffix(".new").write_text(json.dumps(content), encoding="utf-8")
    path.with_suffix(".new").rename(path)


def _gathered(temporary: Path, request: Request, mine: Mapping[int, Index]) -> dict[int, Index]:
    """The indices of all ranks whose memory is somewhere. Raises SaveFailed."""
    found = dict(mine)
    wanted = sorted(set(range(request.world_size)) - request.twins.keys())
    deadline = time.monotonic() + _PATIENCE
    while missing := [rank for rank in wanted if rank not in found]:
        for rank in missing:
            path = _index_path(temporary, rank)
            if path.exists():
                content = json.loads(path.read_text(encoding="utf-8"))
                if "failure" in content:
                    raise SaveFailed(content["failure"])
                found[rank] = shelving.decoded(content)
        if time.monotonic() > deadline:
            raise SaveFailed(f"nothing came from ranks {missing} for {_PATIENCE:g} s")
        time.sleep(_LOOK_SECONDS)
    return dict(sorted(found.items()))


def _orders(
    request: Request, indices: Mapping[int, Index], temporary: Path, root: Path
) -> dict[int, Order]:
    """By rank, what it writes: the same on every node. Raises ValueError in words."""
    _refuse_namesakes(indices)
    plans: list[tuple[SavePlan, Sequence[str]]] = []
    for rank in range(request.world_size):
        index = indices.get(rank)
        items: list[WriteItem] = []
        if index is not None:
            items = [shelving.item_of(chunk) for chunk in index.chunks]
            items += [_kept_item(rank, one.thing) for one in index.kept]
        items += [
            _kept_item(lost, thing)
            for lost, twin in request.twins.items()
            if twin == rank
            for thing in _stand_ins(indices, twin)
        ]
        plans.append((SavePlan(items), () if index is None else index.buffers))
    shared, metadata = shared_out(Planner(), without_later_buffers(plans))
    of_first = indices[min(indices)]
    draft = Manifest(
        step=request.step,
        world_size=request.world_size,
        saved_ns=time.time_ns(),
        torch=of_first.torch,
        mesh=of_first.mesh,
        values=of_first.values,
    )
    return {
        rank: Order(
            temporary=temporary,
            root=root,
            rank=rank,
            world_size=request.world_size,
            plan=Plan(mine=plan, metadata=metadata),
            rest={} if rank not in indices else {k.thing: k.digest for k in indices[rank].kept},
            draft=draft,
            patience=_PATIENCE,
        )
        for rank, plan in enumerate(shared)
    }


def _kept_item(rank: int, thing: str) -> WriteItem:
    return WriteItem(index=MetadataIndex(rest_key(rank, thing)), type=WriteItemType.BYTE_IO)


def _stand_ins(indices: Mapping[int, Index], twin: int) -> dict[str, str]:
    """What of the things that `twin` keeps for itself is its twin's as well, with the digest: what
    belongs to tensors that both hold, and what is the same on all ranks."""
    of_tensors = {chunk.name.partition(".")[0] for chunk in indices[twin].chunks}
    everywhere: dict[str, set[str]] = {}
    for index in indices.values():
        for one in index.kept:
            everywhere.setdefault(one.thing, set()).add(one.digest)
    return {
        one.thing: one.digest
        for one in indices[twin].kept
        if one.thing != things.RANDOM
        and (one.thing in of_tensors or len(everywhere[one.thing]) == 1)
    }


def _stand_in(orders: Mapping[int, Order], indices: Mapping[int, Index], request: Request) -> None:
    """The records of ranks that cannot leave one."""
    for lost, twin in request.twins.items():
        rest = _stand_ins(indices, twin)
        leave(orders[lost], Record(results=[], files=[], digests={}, rest=rest))


def _refuse_namesakes(indices: Mapping[int, Index]) -> None:
    """Replicas that are not equal: there is no telling which of them is right."""
    first: dict[tuple[object, ...], tuple[int, str]] = {}
    for rank, index in indices.items():
        for chunk in index.chunks:
            if chunk.name in index.buffers:
                continue
            holder, known = first.setdefault(chunk.key, (rank, chunk.digest))
            if known != chunk.digest:
                raise ValueError(
                    f"{chunk.name} has other values on rank {rank} than on rank {holder}"
                )


if __name__ == "__main__":
    main()
