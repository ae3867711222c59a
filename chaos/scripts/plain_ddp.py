"""`plain_ddp.py FOLDER [--steps N] [--every N] [--loaders N] [--pause SECONDS]`: plain DDP.

Data come from a DataLoader with processes of its own, two small collectives a step tell loss and
count, rank 0 saves with torch.save, and a restarted job goes on from the newest file. At the end
each rank writes its parameters to FOLDER/final/rankN.bin, bit for bit.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Samples(Dataset[torch.Tensor]):
    """The same numbers for the same step and rank, whichever attempt asks."""

    def __init__(self, first: int, steps: int, rank: int) -> None:
        self.first, self.steps, self.rank = first, steps, rank

    def __len__(self) -> int:
        return (self.steps - self.first) * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        number = (self.first * BATCH + index) * 1000 + self.rank
        return torch.randn(32, generator=torch.Generator().manual_seed(number))


def newest(folder: Path) -> Path | None:
    return max(folder.glob("step_*.pt"), key=lambda each: int(each.stem[5:]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--loaders", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.03)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    given.folder.mkdir(parents=True, exist_ok=True)
    first, saved = 0, newest(given.folder)
    if saved is not None:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    # Keeps DDP from sorting its buckets anew after the first step: an attempt that goes on from a
    # file would add up in another order than one that never stopped.
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    loader = DataLoader(
        Samples(first, given.steps, rank), batch_size=BATCH, num_workers=given.loaders
    )
    for step, batch in enumerate(loader, first + 1):
        loss = (wrapped(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told = loss.detach().clone()
        dist.all_reduce(told)
        counts = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([step, len(batch)]))
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {told.item() / dist.get_world_size():.4f}", flush=True)
        if step % given.every == 0:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                file = given.folder / f"step_{step}.pt"
                torch.save({**state, "step": step}, f"{file}.tmp")
                os.replace(f"{file}.tmp", file)
            dist.barrier()
        time.sleep(given.pause)
    final = given.folder / "final"
    final.mkdir(exist_ok=True)
    numbers = [value.detach().contiguous().view(torch.uint8) for value in model.parameters()]
    content = b"".join(bytes(each.flatten().tolist()) for each in numbers)
    (final / f"rank{rank}.bin").write_bytes(content)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
