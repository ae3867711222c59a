"""What the ranks of these tests do: small trainings that save and load with harness.Checkpointer.

Each function runs in its own process, with a Gloo group when there is more than one rank, and
returns what can be written as JSON.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import harness
import harness.errors
from harness.sdk.checkpoint.memory import _tiers as tiers
from harness.worker import guest, link, memoryfile, pulse
from harness.worker.assignment import Assignment


class Loader:
    """A data loader that knows where it is; every rank is somewhere else."""

    def __init__(self, rank: int) -> None:
        self.at = 1000 * rank

    def draw(self) -> float:
        self.at += 1
        return self.at / 1e4

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Training:
    """A model with dropout and buffers, AdamW, a schedule and a loader, laid out as asked."""

    def __init__(self, layout: str) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(0)
        norm: nn.Module = nn.BatchNorm1d(12) if layout in ("single", "ddp") else nn.LayerNorm(12)
        if layout == "single-ln":
            layout = "single"
        model: nn.Module = nn.Sequential(
            nn.Linear(6, 12), norm, nn.Dropout(0.2), nn.Linear(12, 5), nn.Linear(5, 1)
        )
        if layout == "ddp":
            model = DistributedDataParallel(model)
        elif layout != "single":
            shape = (2, 2) if layout == "hsdp" else (1, dist.get_world_size())
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
            fully_shard(model, mesh=mesh)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.loader = Loader(rank)
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(rank + 7)

    @property
    def things(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
        }

    def step(self) -> float:
        scale = random.random() + float(np.random.rand()) + self.loader.draw()
        loss = (self.model(torch.randn(8, 6)) * scale).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.item()

    def state(self) -> dict[str, str]:
        """A hash of every parameter and of its optimizer state, whole."""
        found = {}
        for name, parameter in self.model.named_parameters():
            kinds = {"": parameter.detach(), **self.optimizer.state.get(parameter, {})}
            for kind, tensor in kinds.items():
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                content = whole.contiguous().numpy().tobytes()
                key = f"{name.removeprefix('module.')}/{kind}"
                found[key] = hashlib.sha256(content).hexdigest()
        return found


def train(
    root: str, *, layout: str, until: int, saves: list[int], sync: bool = True
) -> dict[str, Any]:
    """Load, train until step `until`, save after the steps in `saves`."""
    training = Training(layout)
    ck = harness.Checkpointer(root, sync=sync)
    start = ck.load(**training.things, position=0)
    losses = []
    for step in range(start + 1, until + 1):
        losses.append(training.step())
        if step in saves:
            ck.save(step, **training.things, position=step * 8)
    ck.wait()
    return {
        "start": start,
        "losses": losses,
        "state": training.state(),
        "lr": training.optimizer.param_groups[0]["lr"],
        "at": training.loader.at,
        "values": ck.values,
    }


def full_disk(root: str) -> dict[str, Any]:
    """Rank 1 cannot write for one save; the next one finds room again."""
    training = Training("ddp")
    ck = harness.Checkpointer(root)
    training.step()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    ck.save(1, **training.things)
    failed = ck.wait()
    present = [found.step for found in ck.present()]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    training.step()
    ck.save(2, **training.things)
    saved = ck.wait()
    assert failed is not None
    assert saved is not None
    return {
        "failed": [failed.outcome, failed.reason],
        "present": present,
        "saved": saved.outcome,
        "left": sorted(os.listdir(root)),
    }


def lost_rank(root: str) -> dict[str, Any]:
    """Rank 1 is killed when its copies are made and nothing is written; rank 0 must not wait for
    ever, and must not commit."""
    training = Training("ddp")
    ck = harness.Checkpointer(root)
    training.step()
    ck.save(1, sync=True, **training.things)
    ck = harness.Checkpointer(root, patience=0.2)
    if dist.get_rank() == 1:
        # Without room for a single byte its thread dies with it, in the middle of a write.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    ck.save(2, **training.things)
    assert ck._job is not None
    ck._job.done.wait()
    return {"reason": ck._job.reason, "present": [found.step for found in ck.present()]}


def namesakes(root: str) -> dict[str, Any]:
    """Both ranks hold another tensor by the same name, as stages with local names would."""
    torch.manual_seed(dist.get_rank())
    ck = harness.Checkpointer(root, sync=True)
    done = ck.save(1, model=nn.Linear(3, 3))
    return {"outcome": done.outcome, "reason": done.reason, "present": len(ck.present())}


def misfit_on_one(root: str) -> dict[str, Any]:
    """Only rank 1 hands over an optimizer without its model: all ranks hear of it."""
    model = nn.Linear(2, 2)
    strange = nn.Linear(2, 2) if dist.get_rank() == 1 else model
    optimizer = torch.optim.SGD(strange.parameters(), lr=0.1)
    ck = harness.Checkpointer(root, sync=True)
    failed = ck.save(1, model=model, optimizer=optimizer)
    torch.manual_seed(0)
    ck.save(2, model=nn.Linear(2, 2))
    try:
        ck.load(model=model, optimizer=optimizer)
    except harness.errors.UsageError as error:
        return {"save": failed.reason, "load": error.message}
    return {}


def buffers_of_rank_0(root: str) -> dict[str, Any]:
    """Running statistics differ between replicas; those of rank 0 are what DDP goes on from."""
    model = nn.BatchNorm1d(2)
    assert model.running_mean is not None
    model.running_mean.fill_(float(dist.get_rank()))
    ck = harness.Checkpointer(root, sync=True)
    for step in (1, 2):
        ck.save(step, model=model)
    mean = ck.tensors(2)["model.running_mean"]
    return {"mean": mean.tolist()}


def by_the_clock(root: str) -> dict[str, Any]:
    """Ranks that are told a time between saves, and whose clocks do not agree."""
    os.environ["HARNESS_CHECKPOINT_INTERVAL"] = "0.05"
    ck = harness.Checkpointer(root)
    rank, step, saved = dist.get_rank(), 0, list[int]()
    while len(saved) < 4:
        step += 1
        if rank == 1:
            random.Random(step).sample(range(10_000), 500)
        if ck.maybe_save(step, note=step) is not None:
            saved.append(step)
    ck.wait()
    return {"saved": saved, "present": [found.step for found in ck.present()]}


# --- killed in the middle of a save ---------------------------------------------------------------


def save_for_ever(root: str, committed: int, limit: int | None) -> None:
    """Save one step after the other, everything filled with the step's number. `limit`: the kernel
    kills this process when a file would grow past so many bytes, once two saves are complete."""
    model = nn.Linear(40, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    ck = harness.Checkpointer(root, keep=2)
    step = ck.load(model=model, optimizer=optimizer)
    first = step
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
                parameter.grad = torch.full_like(parameter, step)
        optimizer.state.clear()
        optimizer.step()
        if limit is not None and step > first + 2:
            ck.wait()
            os.pwrite(committed, f"{step - 1:09d}".encode(), 0)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ck.save(step, model=model, optimizer=optimizer, now=step)
        newest = next((found.step for found in ck.present() if found.manifest is not None), 0)
        os.pwrite(committed, f"{newest:09d}".encode(), 0)


def load_whole(root: str) -> int:
    """The step of the newest good checkpoint; its every number is that step."""
    model = nn.Linear(40, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    ck = harness.Checkpointer(root, keep=2)
    step = ck.load(model=model, optimizer=optimizer)
    if step:
        assert ck.values["now"] == step
        tensors = [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
        assert len(tensors) == 4
        assert all(bool((tensor == step).all()) for tensor in tensors)
    return step


def campaign(root: str, *, rounds: int, seed: int) -> dict[str, Any]:
    """Kill a process that saves, again and again: by SIGKILL at a random moment, or by the kernel
    at a random byte of a file. Each time the newest complete checkpoint must load."""
    random_moment = random.Random(seed)
    path = Path(root) / "committed"
    path.write_bytes(b"0" * 9)
    committed = os.open(path, os.O_RDWR)
    ck = str(Path(root) / "ck")
    steps, killed = [], 0
    for number in range(rounds):
        limit = random_moment.randrange(1, 25_000) if number % 2 else None
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.write(writer, b"x")
            save_for_ever(ck, committed, limit)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        if limit is None:
            signal.sigtimedwait([], random_moment.uniform(0.02, 0.3))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        known = int(os.pread(committed, 9, 0))
        pid = os.fork()
        if pid == 0:
            reached = 0
            try:
                reached = load_whole(ck)
                os.pwrite(committed, f"{reached:09d}".encode(), 10)
            finally:
                os._exit(0 if reached >= known else 1)
        _, status = os.waitpid(pid, 0)
        if status:
            return {"round": number, "limit": limit, "known": known}
        steps.append(int(os.pread(committed, 9, 10)))
    os.close(committed)
    return {"rounds": len(steps), "killed": killed, "steps": steps}


# --- the memory tier ------------------------------------------------------------------------------


def be_guest(memory: int, attempt: int, restore: tuple[int, int] = (-1, -1)) -> None:
    """Be the rank of an attempt, as its agent would have it, with this memory file."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    ours, theirs = link.socket_pair()
    ours.detach()
    guest.become(
        Assignment(
            rank=rank,
            world_size=dist.get_world_size() if dist.is_initialized() else 1,
            attempt=attempt,
            agent_pid=os.getppid(),
            pulse=pulse.make_page("test"),
            link=theirs.detach(),
            server="",
            last_record="",
            fatal="",
            mode="script",
            target="",
            arguments=(),
            memory=os.dup(memory),
            restore_attempt=restore[0],
            restore_step=restore[1],
        )
    )
    tiers.clear()


def remember(
    root: str, *, layout: str, harm: str = "", restore: int = 3, then: str = ""
) -> dict[str, Any]:
    """Save step 1 on the disk, remember steps 1 to 3, then go on as a restarted rank would, from
    memory of step `restore`. `harm`: data or index of rank 1's memory are altered in between;
    `then`: another layout."""
    memory = memoryfile.make("test")
    be_guest(memory, 0)
    training = Training(layout)
    ck = harness.Checkpointer(root, sync=True, memory_every=1)
    ck.load(**training.things, position=0)
    states = []
    for step in (1, 2, 3):
        training.step()
        states.append(training.state())
        ck.remember(step, **training.things, position=step * 8)
        if step == 1:
            ck.save(1, **training.things, position=8)
    expected = [training.step() for _ in range(2)]
    tier = tiers[os.getpid()]
    assert tier._newest is not None
    assert tier._newest.thread is not None
    tier._newest.thread.join()
    file = memoryfile.MemoryFile(os.dup(memory))
    steps = [slot.step for slot in file.whole()]
    slot = file.find(0, restore)
    if harm and slot is not None and (not dist.is_initialized() or dist.get_rank() == 1):
        view = file.view(slot.number, slot.bytes)
        view[8 if harm == "data" else slot.bytes - 9] ^= 16
    be_guest(memory, 1, (0, restore))
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    again = Training(then or layout)
    ck = harness.Checkpointer(root, sync=True, memory_every=1)
    start = ck.load(**again.things, position=0)
    files = [name for name in opened if name.startswith(root)]
    return {
        "steps": steps,
        "start": start,
        "source": ck.source,
        "equal": again.state() == states[start - 1],
        "losses": [again.step() for _ in range(2)],
        "expected": expected,
        "at": again.loader.at - training.loader.at,
        "values": ck.values,
        "files": files,
    }
