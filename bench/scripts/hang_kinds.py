"""`hang_kinds.py KIND ONSET_FILE [STEP]`: steps of 50 ms on all ranks, until one goes wrong.

The rank that does so writes `time.time()` of that moment into ONSET_FILE. Which kinds there are,
and what is right to say of each, stands in bench/hangs.py.
"""

import ctypes
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

CULPRIT = 2


class Samples(Dataset):
    """Batches of a loader; with `bad`, the sample of that index never comes."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            note()
            threading.Event().wait()
        return torch.ones(8)


def note() -> None:
    pathlib.Path(sys.argv[2]).write_text(repr(time.time()))


def loop() -> None:
    number = 0
    while number != 1:
        number //= 2


def lock_twice() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def read_pipe() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def hold_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def metrics(world: int) -> None:
    dist.all_gather([torch.zeros(1) for _ in range(world)], torch.ones(1))


OUTSIDE = {
    "loop": loop,
    "sleep": lambda: time.sleep(3600),
    "lock": lock_twice,
    "pipe": read_pipe,
    "gil": hold_gil,
    "frozen": stop_self,
}


def go_wrong(kind: str, rank: int, world: int) -> None:
    """What this step is on its way to, where it is the step that goes wrong."""
    culprit = rank == CULPRIT
    if culprit:
        note()
    if kind in OUTSIDE and culprit:
        OUTSIDE[kind]()
    elif kind in ("extra", "skipped") and culprit == (kind == "extra"):
        metrics(world)
    elif kind == "other":
        dist.reduce(torch.ones(8), 0) if culprit else dist.all_reduce(torch.ones(8))
    elif kind == "uneven" and culprit:
        dist.barrier()
    elif kind == "p2p" and rank in (1, CULPRIT):
        dist.recv(torch.ones(8), 3 - rank)
    elif kind == "group" and not culprit:
        dist.new_group(list(range(world)))


def main() -> None:
    kind, wrong_at = sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 20
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    bad = 4 * wrong_at if kind == "loader" and rank == CULPRIT else -1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    workers = 1 if kind == "loader" else 0
    batches = DataLoader(Samples(bad), batch_size=4, num_workers=workers)
    for step, batch in enumerate(batches):
        if step == wrong_at and kind != "loader":
            go_wrong(kind, rank, world)
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
