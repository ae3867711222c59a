"""Data-parallel training that loses a rank once: the same for every system that is to recover it.

`recovering.py plain|inprocess|torchft FOLDER FAULT`. FAULT is what rank 2 meets in its first step
from step 55 on, once: kill (SIGKILL), raise (an exception), exit (code 3), stop (SIGSTOP), sleep
(it never returns), mismatch (1000 elements too many), skip (the reduction of gradients is left
out), skip_silent (the same where no other reduction follows, so that all have one size) or slow
(from there on it takes five times as long). A checkpoint is written every 10 steps. FOLDER
gets the checkpoint and `events`, one JSON list a line: what, when, step, rank, how often this
program was begun. `plain` runs under harness and torchrun alike; the other two have the calls that
NVRx's in-process restart and torchft ask for.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MODE, FOLDER, FAULT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
STEPS, EVERY, FAULT_STEP, FAULT_RANK = 300 if FAULT == "slow" else 80, 10, 55, 2
WORK_SECONDS = 0.02
CHECKPOINT = FOLDER / "checkpoint.pt"
AllReduce = Callable[[torch.Tensor], torch.Tensor]


class Training:
    """Model, optimizer and the step they make."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        hidden = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(2)]
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), *hidden, nn.Linear(256, 10))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.begun = 0
        self.odd = ""
        self.slow = False
        self.rank = 0

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self, step: int) -> None:
        part = CHECKPOINT.with_name(f"{os.getpid()}.tmp")
        torch.save({"step": step, **self.state()}, part)
        part.replace(CHECKPOINT)

    def load(self) -> int:
        if not CHECKPOINT.exists():
            return 0
        state = torch.load(CHECKPOINT)
        self.take(state)
        return int(state["step"])

    def gradients(self, step: int, all_reduce: AllReduce) -> None:
        """Those of one step, made and agreed; the fault happens in between."""
        draw = torch.Generator().manual_seed(1000 * step + self.rank)
        inputs = torch.randn(16, 64, generator=draw)
        targets = torch.randint(0, 10, (16,), generator=draw)
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        time.sleep(WORK_SECONDS * (5 if self.slow else 1))
        self.fail(step)
        parameters = list(self.model.parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        if self.odd == "mismatch":
            flat = torch.cat([flat, torch.zeros(1000)])
        count = sum(parameter.numel() for parameter in parameters)
        flat = flat if self.odd.startswith("skip") else all_reduce(flat)[:count]
        if FAULT != "skip_silent":
            all_reduce(torch.zeros(1))
        self.odd = ""
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def fail(self, step: int) -> None:
        # Of torchft's replicas one may come late, on a busy machine, and never take that very step.
        if self.rank != FAULT_RANK or step < FAULT_STEP:
            return
        try:
            os.close(os.open(FOLDER / "failed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.note("fault", step)
        if FAULT == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "exit":
            sys.exit(3)
        if FAULT == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == "sleep":
            user_code_that_never_returns()
        if FAULT in ("mismatch", "skip", "skip_silent"):
            self.odd = FAULT
            return
        if FAULT in ("stop", "slow"):
            self.slow = FAULT == "slow"
            return
        raise RuntimeError("a bad batch")

    def note(self, what: str, step: int) -> None:
        line = json.dumps([what, time.time(), step, self.rank, self.begun]) + "\n"
        with open(FOLDER / "events", "a", encoding="ascii") as events:
            events.write(line)


def user_code_that_never_returns() -> None:
    while True:
        time.sleep(3600)


def loop(training: Training, all_reduce: AllReduce, each: Callable[[], None]) -> None:
    start = training.load()
    training.note("begin", start)
    for step in range(start, STEPS):
        training.optimizer.zero_grad()
        training.gradients(step, all_reduce)
        training.optimizer.step()
        training.note("step", step)
        each()
        if training.rank == 0 and (step + 1) % EVERY == 0:
            training.save(step + 1)


def summed(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def plain() -> None:
    dist.init_process_group("gloo")
    training = Training()
    training.rank = dist.get_rank()
    training.begun = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    loop(training, summed, heartbeats())
    dist.barrier()
    del training
    dist.destroy_process_group()


def heartbeats() -> Callable[[], None]:
    """What each step tells NVRx's ft_launcher, where that runs it."""
    if "HARNESS_BENCH_HEARTBEATS" not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    tell: Callable[[], None] = client.send_heartbeat
    return tell


def inprocess() -> None:
    """NVRx's Wrapper. Gloo cannot abort a collective that waits, so the wait is a poll that the
    Wrapper can interrupt, and the old group is kept: its destructor would wait for it."""
    import nvidia_resiliency_ext.inprocess as nvrx

    kept: list[Any] = []

    class KeepGroup(nvrx.abort.Abort):
        def __call__(self, state: Any) -> Any:
            if dist.is_initialized():
                kept.append(dict(dist.distributed_c10d._world.pg_map))
                dist.destroy_process_group()
            return state

    def polled(tensor: torch.Tensor) -> torch.Tensor:
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            time.sleep(0.0003)
        work.wait()
        return tensor.div_(dist.get_world_size())

    name, port, was = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ["RANK"]

    @nvrx.Wrapper(
        store_kwargs={"port": port + 1, "timeout": timedelta(seconds=300)},
        monitor_process_logfile=str(FOLDER / "monitor_{rank}.log"),
        abort=KeepGroup(),
    )
    def train(call_wrapper: nvrx.CallWrapper = None) -> None:  # it looks for the annotation
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore(
            name, port, world, rank == 0, multi_tenant=True, wait_for_workers=False
        )
        parted = dist.PrefixStore(str(call_wrapper.iteration), store)
        dist.init_process_group("gloo", store=parted, rank=rank, world_size=world)
        training = Training()
        training.rank = int(was)
        training.begun = call_wrapper.iteration
        loop(training, polled, call_wrapper.ping)
        dist.barrier()

    train()


def torchft() -> None:
    """Each rank is a replica of its own; survivors go on, the lost one heals from them."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    short = timedelta(seconds=float(os.environ["TORCHFT_SECONDS"]))
    training = Training()
    training.rank = int(os.environ["REPLICA_GROUP_ID"])
    training.begun = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    manager = Manager(
        pg=ProcessGroupGloo(timeout=short),
        load_state_dict=training.take,
        state_dict=training.state,
        min_replica_size=2,
        replica_id=f"replica_{training.rank}",
        init_sync=False,
        timeout=short,
        quorum_timeout=max(short, timedelta(seconds=20)),
        connect_timeout=max(short, timedelta(seconds=5)),
    )
    training.optimizer = Optimizer(manager, training.optimizer)

    def agreed(tensor: torch.Tensor) -> torch.Tensor:
        manager.allreduce(tensor).wait()
        return tensor

    training.note("begin", 0)
    while manager.current_step() < STEPS * 4:
        step = manager.current_step()
        training.optimizer.zero_grad()
        training.gradients(step, agreed)
        training.optimizer.step()
        training.note("step" if manager.current_step() > step else "again", step)
    manager.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"plain": plain, "inprocess": inprocess, "torchft": torchft}[MODE]()
