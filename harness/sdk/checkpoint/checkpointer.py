"""`harness.Checkpointer`: save in the background, load what can be trusted, keep what is needed."""

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh

from harness import checkpointdir
from harness.checkpointdir import Found
from harness.checkpoints import Manifest
from harness.errors import UsageError
from harness.sdk.checkpoint import loading, things
from harness.sdk.checkpoint.agreement import Agreement
from harness.sdk.checkpoint.memory import OTHERS, MemoryTier
from harness.sdk.checkpoint.pace import Pace, told_interval
from harness.sdk.checkpoint.plan import Plan, agree, fingerprint, state_dict
from harness.sdk.checkpoint.staging import Snapshot, rest_digests
from harness.sdk.checkpoint.things import Contents, Things
from harness.sdk.checkpoint.writing import Order, SaveFailed, in_words, write
from harness.sdk.progress import (
    checkpoint_failed,
    checkpoint_loaded,
    checkpoint_refused,
    checkpoint_saved,
    numbers_are_compared,
    phase,
    should_save,
    should_stop,
    this_attempt,
)

Outcome = Literal["writing", "saved", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """What became of a call of `save`, the same on every rank unless it is still being written.

    `blocked` is the seconds that training stood still on this rank, `reason` says why nothing was
    saved.
    """

    step: int
    path: Path
    outcome: Outcome
    blocked: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why nothing is saved this time, in words."""

    outcome: Literal["skipped", "failed"]
    reason: str

    def on(self, rank: int) -> "_Obstacle":
        return self if rank == 0 else replace(self, reason=f"on rank {rank}: {self.reason}")


@dataclass(slots=True)
class _Job:
    """A save in the background."""

    step: int
    path: Path
    blocked: float = 0.0
    reason: str = ""
    thread: threading.Thread | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Checkpointer:
    """Checkpoints of one training in one folder that all nodes see.

        ck = harness.Checkpointer("checkpoints", keep=3)
        start = ck.load(model=model, optimizer=optimizer, scheduler=scheduler)
        ck.save(step, model=model, optimizer=optimizer, scheduler=scheduler)

    `load`, `save` and `wait` are called on all ranks alike. Things are given by name: models (or
    lists of their parts), optimizers, anything with state_dict and load_state_dict, plain values.
    Random numbers are saved with them.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int = 0,
        every: int | None = None,
        memory_every: int = 0,
        sync: bool = False,
        wait: float = 30.0,
        patience: float = 120.0,
        mesh: DeviceMesh | Mapping[str, int] | None = None,
    ) -> None:
        """`keep` newest checkpoints stay, and those whose step `keep_every` divides (0: none).
        `every` is the interval of `maybe_save` in steps; left out, it keeps to the time that
        `harness run --checkpoint-interval` tells, and saves at every step where none is told.
        `memory_every` is that of `remember`, in steps (0: never). `sync` writes before `save`
        returns. A save waits at most `wait` seconds for the one before, and is given up when for
        `patience` seconds nothing comes from another rank. `mesh` goes into the manifest; left
        out, it is read off the tensors. Raises UsageError."""
        for name, number, least in (
            ("keep", keep, 1),
            ("keep_every", keep_every, 0),
            ("every", 1 if every is None else every, 1),
            ("memory_every", memory_every, 0),
        ):
            if number < least:
                raise UsageError(f"Checkpointer: {name} must be at least {least}, not {number}")
        self.root = Path(root)
        self.values: dict[str, Any] = {}
        """Plain values of the checkpoint that was loaded, by name."""
        self.loaded: Path | None = None
        """The checkpoint that was loaded; what came from memory has a name there and no folder."""
        self.source = ""
        """Where it was loaded from: disk, memory (of this node), neighbour (memory of another)."""
        self._memory_every = memory_every
        self._memory = MemoryTier.of_this_rank()
        self._memory_told = ""
        self._keep, self._keep_every, self._every = keep, keep_every, every or 1
        seconds = 0.0 if every is not None else told_interval()
        self._pace = Pace(seconds) if seconds > 0 else None
        self._sync, self._wait, self._patience = sync, wait, patience
        self._mesh = _sizes(mesh)
        self._ranks: Agreement | None = None
        self._token = ""
        self._snapshot = Snapshot()
        self._plan: tuple[str, Plan] | None = None
        self._job: _Job | None = None

    def present(self) -> list[Found]:
        """All checkpoints in the folder, newest first, judged by manifest and sizes of files: a
        look of this process alone, before or without any process group."""
        return checkpointdir.look_at_all(self.root)

    def tensors(self, step: int) -> dict[str, torch.Tensor]:
        """All tensors of the checkpoint of `step`, whole, on the CPU, by THING.NAME, verified: on
        this process alone and whatever layout saved them. Raises ValueError in words, OSError."""
        return loading.whole_tensors(checkpointdir.look(self.root, step))

    # --- loading -------------------------------------------------------------------------------

    def load(self, **given: Any) -> int:
        """Load the newest good checkpoint into these things, in place; returns its step, or 0 when
        there is none.

        After a restart that is what the nodes hold in memory, where `remember` put it there and the
        controller says so; no file is opened then. A checkpoint that is incomplete or altered is
        passed over, aloud on stderr, for the next older one; all ranks take the same. Make the data
        loader's iterator before: random numbers are those of the save once this returns. Raises
        UsageError when the checkpoint does not fit the things, or when one had been loaded in part
        and no older one is good.
        """
        self.wait()
        ranks = self._agreement()
        asked = things.sort(given)
        began = time.perf_counter()
        remembered = self._from_memory(asked, ranks, began)
        if remembered is not None:
            return remembered
        steps, why = ranks.from_first(self._steps() if ranks.rank == 0 else None)
        if why:
            raise UsageError(f"{self.root} cannot be read: {why}")
        touched = False
        for step in steps:
            found = checkpointdir.look(self.root, step)
            reason = _first(ranks, checkpointdir.verify(found, ranks.rank, ranks.size))
            if not reason:
                reason = self._take(found, asked, ranks)
                touched = True
            if not reason:
                self.loaded, self.source = found.path, "disk"
                checkpoint_loaded(step, found.path, time.perf_counter() - began, "disk")
                return int(step)
            if ranks.rank == 0:
                _say(f"checkpoint {found.path} passed over: {reason}")
                if checkpointdir.is_finished(found):
                    checkpoint_refused(step, found.path, reason)
        if touched:
            raise UsageError(f"{self.root}: a checkpoint was loaded in part, and no older is good")
        if steps and ranks.rank == 0:
            _say(f"no checkpoint in {self.root} is good; training starts at its beginning")
        self.values = dict(asked.values)
        return 0

    def _from_memory(self, asked: Things, ranks: Agreement, began: float) -> int | None:
        """The step, when memory gave it; None when there is nothing, or nothing to be trusted."""
        if self._memory is None or self._memory.step < 0:
            return None
        done = self._memory.restore(asked, ranks, self._mesh)
        if done.reason:
            if ranks.rank == 0:
                _say(f"memory of step {done.step} passed over for the disk: {done.reason}")
            return None
        self.values = done.values
        self.loaded = Path("memory", checkpointdir.folder(self.root, done.step).name)
        self.source = done.source
        checkpoint_loaded(done.step, self.loaded, time.perf_counter() - began, done.source)
        return done.step

    def _steps(self) -> tuple[list[int], str]:
        """Steps to try, newest first, or why there is no telling. On rank 0."""
        try:
            checkpointdir.restore_replaced(self.root)
            for path in checkpointdir.unfinished(self.root):
                _say(f"checkpoint {path} passed over: the save was interrupted or is under way")
            return checkpointdir.steps_present(self.root), ""
        except OSError as error:
            return [], in_words(error)

    def _take(self, found: Found, asked: Things, ranks: Agreement) -> str:
        """Load this one; returns why it is refused after all."""
        manifest = found.manifest
        assert manifest is not None
        targets, reason = loading.prepared(asked, manifest, ranks)
        if reason:
            raise UsageError(
                f"checkpoint {found.path} does not fit: {reason}",
                help="load it into what it was saved from, or use another folder",
            )
        mesh = self._mesh or loading.mesh_of(targets)
        entries, lost = loading.kept_by(asked, manifest, ranks, mesh)
        flat = [key for keys in entries.values() for key in keys]
        kept, reason = loading.fill(found, targets, flat, ranks)
        if reason:
            return reason
        rest = {thing: [kept[key] for key in keys] for thing, keys in entries.items()}
        self.values = things.install(asked, targets, rest)
        for sentence in lost if ranks.rank == 0 else ():
            _say(f"checkpoint {found.path}: {sentence}")
        return ""

    # --- saving --------------------------------------------------------------------------------

    def remember(self, step: int, **given: Any) -> bool:
        """Copy these things into the node's memory when `memory_every` divides `step`, a step that
        has been done; whether that was done. Call it on all ranks.

        After a failure `load` gives them back without a look at the disk, also where a node was
        lost, as long as another one keeps its copy. Nothing happens outside of `harness run`. What
        goes wrong is said once, and training goes on.
        """
        tier, every = self._memory, self._memory_every
        if tier is None or not every or step <= 0 or step % every:
            return False
        tier.claim(self)
        ranks = self._agreement()
        asked = things.sort(given)
        found: Contents | str
        try:
            found = things.collect(asked)
        except Exception as error:  # the border to the script's own state_dict()
            found = in_words(error)
        why = tier.stage(step, found, ranks, root=str(self.root.absolute()), mesh=self._mesh)
        if why and why != self._memory_told and (ranks.rank == 0 or why != OTHERS):
            _say(f"step {step} is not in memory: {why}; training goes on")
        self._memory_told = why
        return not why

    def maybe_save(self, step: int, **given: Any) -> Save | None:
        """Save when `every` divides `step`, a step that has been done, or by the clock, at the same
        step on all ranks; otherwise None. Copy into memory when `memory_every` divides it.

        Also when a checkpoint was asked for (`harness ckpt save`) and this is the step that all
        ranks agreed on; and when the run is preempted and this is the step to stop at: then it is
        on disk when the call returns, and `harness.should_stop(step)` says so to the script.
        """
        stopping, asked = should_stop(step), should_save(step)
        self.remember(step, **given)
        if step <= 0 or not (stopping or asked or self._due(step)):
            return None
        return self.save(step, sync=True if stopping else None, **given)

    def _due(self, step: int) -> bool:
        if self._pace is None:
            return step % self._every == 0
        return self._pace.due(step, lambda decision: self._agreement().from_first(decision))

    def save(self, step: int, *, sync: bool | None = None, **given: Any) -> Save:
        """Save these things as the checkpoint of `step`, completed optimizer steps.

        Returns once copies are made; they are written in the background, unless `sync`. A save
        that fails is said on stderr and told to Harness, and training goes on: nothing is raised
        but UsageError for a step or name that cannot be.
        """
        if step < 0:
            raise UsageError(f"Checkpointer: step {step} is negative")
        began = time.perf_counter()
        if self._pace is not None:
            self._pace.saved()
        with phase("checkpoint"):
            ranks = self._agreement()
            asked = things.sort(given)
            job = _Job(step, checkpointdir.folder(self.root, step))
            contents, obstacle = self._collect(asked)
            layout = fingerprint(contents) if contents else ""
            known = self._plan is not None and self._plan[0] == layout
            told = ranks.from_all((obstacle, known))
            obstacles = [(rank, found) for rank, (found, _) in enumerate(told) if found]
            if obstacles or contents is None:
                rank, first = obstacles[0]
                return self._not_saved(job, began, first.on(rank), ranks)
            try:
                if not all(known for _, known in told):
                    self._plan = None
                    self._plan = (layout, agree(contents, ranks))
            except ValueError as error:
                return self._not_saved(job, began, _Obstacle("failed", str(error)), ranks)
            assert self._plan is not None
            self._begin(job, contents, self._plan[1], ranks)
            job.blocked = time.perf_counter() - began
            assert job.thread is not None
            job.thread.start()
            if sync if sync is not None else self._sync:
                return self._finish(job, began, ranks)
        return Save(step=step, path=job.path, outcome="writing", blocked=job.blocked)

    def wait(self) -> Save | None:
        """Wait for the save in the background; when it returns, the checkpoint is complete or has
        failed on all ranks. None when nothing was being saved."""
        return None if self._job is None else self._finish(self._job, None, self._ranks)

    def _collect(self, asked: Things) -> tuple[Contents | None, _Obstacle | None]:
        """What there is to save, or why nothing can be saved now."""
        before = self._job
        if before is not None and not before.done.wait(self._wait):
            words = f"the save of step {before.step} is still being written after {self._wait:g} s"
            return None, _Obstacle("skipped", words)
        try:
            return things.collect(asked), None
        except Exception as error:  # the border to the script's own state_dict()
            return None, _Obstacle("failed", in_words(error))

    def _not_saved(self, job: _Job, began: float, why: _Obstacle, ranks: Agreement) -> Save:
        if ranks.rank == 0:
            _say_failed(job.step, why.reason, why.outcome)
        checkpoint_failed(job.step, job.path, why.reason)
        return Save(
            step=job.step,
            path=job.path,
            outcome=why.outcome,
            blocked=time.perf_counter() - began,
            reason=why.reason,
        )

    def _begin(self, job: _Job, contents: Contents, plan: Plan, ranks: Agreement) -> None:
        """Copy what this rank writes, and get ready to write it."""
        order = Order(
            temporary=job.path.with_name(f"{job.path.name}.tmp-{self._token}"),
            root=self.root,
            rank=ranks.rank,
            world_size=ranks.size,
            plan=plan,
            rest=rest_digests(contents),
            draft=Manifest(
                step=job.step,
                world_size=ranks.size,
                saved_ns=time.time_ns(),
                torch=str(torch.__version__),
                mesh=self._mesh or loading.mesh_of(contents.tensors),
                values=contents.values,
            ),
            patience=self._patience,
        )
        try:
            self._snapshot.take(state_dict(contents, ranks.rank), plan.mine)
        except Exception as error:  # a border: the other ranks have begun to write
            job.reason = f"no copy could be made: {in_words(error)}"
        job.thread = threading.Thread(
            target=self._write, args=(job, order), name="harness-checkpoint"
        )
        self._job = job

    def _write(self, job: _Job, order: Order) -> None:
        """Body of the thread; nothing escapes it."""
        try:
            if job.reason:
                raise SaveFailed(job.reason)
            if order.rank == 0:
                checkpointdir.tidy(self.root, spare=order.temporary)
            write(order, self._snapshot)
            checkpoint_saved(job.step, job.path, job.blocked)
            if order.rank == 0:
                self._prune(job.step)
        except Exception as error:  # the border of the thread
            job.reason = in_words(error)
            _say_failed(job.step, job.reason, "failed", order.rank)
            checkpoint_failed(job.step, job.path, job.reason)
        finally:
            job.done.set()

    def _prune(self, newest: int) -> None:
        try:
            checkpointdir.prune(
                self.root, keep=self._keep, keep_every=self._keep_every, newest=newest,
                holder=this_attempt(), awaited=numbers_are_compared(),
            )  # fmt: skip
        except OSError as error:
            _say(f"an old checkpoint could not be deleted: {in_words(error)}")

    def _finish(self, job: _Job, began: float | None, ranks: Agreement | None) -> Save:
        job.done.wait()
        if job.thread is not None:
            job.thread.join()
        self._job = None
        reason = job.reason
        if ranks is not None and ranks.current():  # otherwise the group has been destroyed
            reason = _first(ranks, reason)
        blocked = job.blocked if began is None else time.perf_counter() - began
        return Save(
            step=job.step,
            path=job.path,
            outcome="failed" if reason else "saved",
            blocked=blocked,
            reason=reason,
        )

    def _agreement(self) -> Agreement:
        if self._ranks is None or not self._ranks.current():
            self._ranks, self._plan = Agreement(), None
            # Ranks of an earlier launch that are not quite dead write elsewhere.
            self._token = self._ranks.from_first(os.urandom(4).hex())
        return self._ranks


def _sizes(mesh: DeviceMesh | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(mesh, DeviceMesh):
        return {name: mesh.size(i) for i, name in enumerate(mesh.mesh_dim_names or ())}
    return dict(mesh or {})


def _first(ranks: Agreement, reason: str) -> str:
    """The first rank's reason that there is; the same on all ranks."""
    return next((told for told in ranks.from_all(reason) if told), "")


def _say(text: str) -> None:
    print(f"harness: {text}", file=sys.stderr, flush=True)


def _say_failed(step: int, reason: str, what: str, rank: int | None = None) -> None:
    who = "" if rank is None else f" on rank {rank}"
    _say(
        f"checkpoint of step {step} {what}{who}: {reason}; training goes on, the next save tries "
        "again"
    )
