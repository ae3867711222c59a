"""The memory tier of a rank: its state after a step in memory that its node's agent owns, and back.

Staging copies into a slot that nobody needs any more, and returns; a thread then digests what was
copied and makes the slot count. All ranks meet in one small sum before they copy, so that no rank
gives up a generation before every other one has a newer one, whole. While another node takes
copies, the one being sent and the last that every node has sent stay too.
"""

import io
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItem

from harness.errors import UsageError
from harness.sdk.checkpoint import shelving
from harness.sdk.checkpoint import things as kinds
from harness.sdk.checkpoint.agreement import Agreement
from harness.sdk.checkpoint.loading import mesh_of
from harness.sdk.checkpoint.plan import items
from harness.sdk.checkpoint.shelving import Chunk, Index, Kept, Layout
from harness.sdk.checkpoint.staging import copy_all
from harness.sdk.checkpoint.things import Contents, Things
from harness.sdk.checkpoint.writing import in_words
from harness.worker.guest import Guest, current
from harness.worker.memoryfile import SLOTS, BadMemory, MemoryFile, encoded

OTHERS = "another rank could not stage"


@dataclass(slots=True)
class _Staged:
    """A generation of this rank that is being digested, or is whole."""

    slot: int
    step: int
    send: bool
    failure: str = ""
    thread: threading.Thread | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What memory gave back: the step, the plain values, and which node's memory it was
    (`memory`: this one's, `neighbour`: another's). `reason`: why it is passed over instead."""

    step: int
    values: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    reason: str = ""


class MemoryTier:
    """This rank's side of it. No method raises for want of memory, but `claim`."""

    def __init__(self, guest: Guest, file: MemoryFile) -> None:
        self._guest, self._file = guest, file
        self._owner: weakref.ref[object] | None = None
        told = guest.assignment
        self._restored = file.find(told.restore_attempt, told.restore_step)
        first = None if self._restored is None else self._restored.number
        self._newest: _Staged | None = None
        self._common = first
        """Slot of the newest generation that is whole on all ranks."""
        self._sending: _Staged | None = None
        self._sent = first if file.neighbour else None
        """Slot of the newest generation that every node has given to its neighbour."""

    @classmethod
    def of_this_rank(cls) -> "MemoryTier | None":
        """The one of this process. None outside of `harness run`, and where the node could make
        no memory."""
        guest = current()
        if guest is None or guest.memory is None:
            return None
        tier = _tiers.get(guest.pid)
        if tier is None:
            tier = _tiers[guest.pid] = cls(guest, guest.memory)
        return tier

    def claim(self, owner: object) -> None:
        """Raises UsageError when another one stages here already: there is room for one state."""
        if self._owner is None:
            self._owner = weakref.ref(owner)
        elif self._owner() is not owner:
            raise UsageError(
                "Checkpointer: another one of this process has memory_every set",
                help="give all things to one Checkpointer, or set it on one of them only",
            )

    # --- into memory ---------------------------------------------------------------------------

    def stage(
        self,
        step: int,
        contents: Contents | str,
        ranks: Agreement,
        *,
        root: str,
        mesh: Mapping[str, int],
    ) -> str:
        """Copy `contents` as the generation of `step`; called on all ranks.

        `contents` may be the reason why there are none; then no rank copies. Returns why nothing
        was staged, in words, or an empty string. `root` is the folder of the checkpoints.
        """
        before, sending = self._newest, self._sending
        if before is not None and before.thread is not None:
            before.thread.join()
        failure = contents if isinstance(contents, str) else ""
        failure = failure or ("" if before is None else before.failure)
        unsent = sending is not None and self._file.sent < sending.step
        failed, waiting = ranks.summed([int(bool(failure)), int(unsent)])
        if failed or isinstance(contents, str):
            self._newest = None
            if sending is before:
                self._sending = None
            return failure or OTHERS
        if before is not None:
            self._common = before.slot
        send = self._file.neighbour and not waiting
        if send and sending is not None:
            self._sent = sending.slot
        held = {self._common, self._sent} | ({sending.slot} if sending and not send else set())
        slot = next(number for number in range(SLOTS) if number not in held)
        self._newest = staged = _Staged(slot, step, send)
        if send:
            self._sending = staged
        try:
            self._copy(staged, contents, self._about(step, contents, ranks, root, mesh))
        except Exception as error:  # a border: training goes on without it
            staged.failure = f"no copy could be made: {in_words(error)}"
        return staged.failure

    def _about(
        self, step: int, contents: Contents, ranks: Agreement, root: str, mesh: Mapping[str, int]
    ) -> Index:
        """The index of a generation, but for what it describes."""
        return Index(
            attempt=self._guest.assignment.attempt,
            step=step,
            rank=ranks.rank,
            world_size=ranks.size,
            root=root,
            torch=str(torch.__version__),
            mesh=dict(mesh or mesh_of(contents.tensors)),
            values=contents.values,
            buffers=tuple(sorted(contents.buffers)),
            chunks=(),
            kept=(),
        )

    def _copy(self, staged: _Staged, contents: Contents, about: Index) -> None:
        layout = Layout()
        found = items(contents.tensors)
        chunks = [shelving.chunk_of(item, live, layout) for item, live in found]
        kept = [
            Kept(thing=thing, at=layout.place(len(content)), bytes=len(content), digest="")
            for thing, content in contents.rest.items()
        ]
        index = replace(about, chunks=tuple(chunks), kept=tuple(kept))
        self._file.begin(staged.slot)
        # The index comes behind the data; a page more holds most of them.
        view = self._file.view(staged.slot, layout.end + 1)
        copy_all(
            (live, shelving.tensor_of(chunk, view))
            for (_, live), chunk in zip(found, chunks, strict=True)
        )
        for one, content in zip(kept, contents.rest.values(), strict=True):
            view[one.at : one.at + one.bytes] = content
        staged.thread = threading.Thread(
            target=self._finish, args=(staged, index, layout.end), name="harness-memory"
        )
        staged.thread.start()

    def _finish(self, staged: _Staged, index: Index, end: int) -> None:
        """Body of the thread: digest what was copied, then let it count. Nothing escapes it."""
        try:
            view = self._file.view(staged.slot, end + 1)
            chunks = tuple(replace(c, digest=shelving.digest_of(c, view)) for c in index.chunks)
            kept = tuple(
                replace(k, digest=shelving.kept_digest(view[k.at : k.at + k.bytes]))
                for k in index.kept
            )
            blob = encoded(replace(index, chunks=chunks, kept=kept).encoded())
            view = self._file.view(staged.slot, end + len(blob))
            view[end : end + len(blob)] = blob
            self._file.commit(
                staged.slot,
                attempt=index.attempt,
                step=staged.step,
                shard=shelving.shard_key(chunks),
                data_bytes=end,
                index_bytes=len(blob),
                send=staged.send,
            )
            self._guest.link.say("MemoryStaged", step=staged.step)
        except Exception as error:  # the border of the thread
            staged.failure = in_words(error)

    # --- back ----------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The step that all ranks are to go on from, by the controller's word; -1: none."""
        return self._guest.assignment.restore_step

    def restore(self, asked: Things, ranks: Agreement, mesh: Mapping[str, int]) -> Remembered:
        """Give the things the state that the controller named. Nothing is touched unless every
        rank's copy is whole, verified, and fits."""
        slot = self._restored
        index: Index | None = None
        reason = "it is not in this node's memory"
        targets: dict[str, torch.Tensor] = {}
        live: list[tuple[WriteItem, torch.Tensor]] = []
        if slot is not None:
            try:
                index = shelving.read(self._file, slot)
                targets = kinds.targets(asked, index.tensors)
                live = items(targets)
                reason = _misfit(index, live, asked, ranks, mesh or mesh_of(targets))
                reason = reason or shelving.altered(
                    index, self._file.view(slot.number, slot.data_bytes or 1)
                )
            except (BadMemory, OSError) as error:
                reason = in_words(error)
            except Exception as error:  # the border to the script's models; no rank may wait
                reason = f"it does not fit: {in_words(error)}"
        brought = slot is not None and slot.brought
        told = ranks.from_all((reason, brought))
        for rank, (why, _) in enumerate(told):
            if why:
                if slot is not None:
                    self._file.drop(slot.number)
                return Remembered(step=self.step, reason=f"rank {rank}: {why}")
        assert index is not None
        assert slot is not None
        view = self._file.view(slot.number, slot.data_bytes or 1)
        chunks = {chunk.key: chunk for chunk in index.chunks}
        with torch.no_grad():
            for item, local in live:
                local.detach().copy_(shelving.tensor_of(chunks[_key(item, local)], view))
        rest = {one.thing: [_unpickled(view[one.at : one.at + one.bytes])] for one in index.kept}
        values = kinds.install(asked, targets, rest)
        source = "neighbour" if any(far for _, far in told) else "memory"
        return Remembered(step=index.step, values=values, source=source)


_tiers: dict[int, MemoryTier] = {}
"""By process: a forked child has none."""


def _key(item: WriteItem, local: torch.Tensor) -> tuple[object, ...]:
    return shelving.chunk_of(item, local, Layout()).key


def _misfit(
    index: Index,
    live: list[tuple[WriteItem, torch.Tensor]],
    asked: Things,
    ranks: Agreement,
    mesh: Mapping[str, int],
) -> str:
    """Why these things are not those that were staged, in words; empty when they are."""
    if (index.rank, index.world_size) != (ranks.rank, ranks.size):
        return f"it was staged by rank {index.rank} of {index.world_size}"
    if dict(index.mesh) != dict(mesh):
        return f"the mesh is {dict(mesh)}, it was staged on {dict(index.mesh)}"
    now = {_key(item, local) for item, local in live}
    then: dict[tuple[object, ...], Chunk] = {chunk.key: chunk for chunk in index.chunks}
    if now != then.keys():
        names = sorted({str(key[0]) for key in now ^ then.keys()})
        return f"{names[0]} is laid out in another way, or is not in both"
    staged = {one.thing for one in index.kept} | {
        chunk.name.partition(".")[0] for chunk in then.values()
    }
    for thing in [*asked.modules, *asked.optimizers, *asked.stateful]:
        if thing not in staged:
            return f"it has no {thing}"
    return ""


def _unpickled(content: bytes) -> Any:
    """What a rank of this run kept for itself, as `things.pickled` made it."""
    return torch.load(io.BytesIO(content), weights_only=False)
