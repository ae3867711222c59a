"""DDP training as people write it, with a schedule of faults: `racing.py FOLDER STEPS SCHEDULE`.

SCHEDULE is a JSON list of `[step, rank, kill|raise|exit]`, each of which happens once. A checkpoint
is written every 20 steps; rank 0 writes the time of every step that is done to FOLDER/steps.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER, STEPS, EVERY, WORK_SECONDS = Path(sys.argv[1]), int(sys.argv[2]), 20, 0.02
FAULTS = {(step, rank): what for step, rank, what in json.loads(sys.argv[3])}


def fail(step: int, rank: int) -> None:
    what = FAULTS.get((step, rank))
    if what is None:
        return
    try:
        os.close(os.open(FOLDER / f"failed.{step}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        sys.exit(3)
    raise RuntimeError("a bad batch")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, checkpoint, start = dist.get_rank(), FOLDER / "checkpoint.pt", 0
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(bare, nn.Linear(256, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start, STEPS):
        draw = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(16, 64, generator=draw)
        targets = torch.randint(0, 10, (16,), generator=draw)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        time.sleep(WORK_SECONDS)
        fail(step, rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(FOLDER / "steps", "a", encoding="ascii") as steps:
                steps.write(f"{time.time():.6f}\n")
        if rank == 0 and (step + 1) % EVERY == 0:
            part = FOLDER / "part.pt"
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"step": step + 1, **state}, part)
            part.replace(checkpoint)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
