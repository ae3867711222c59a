# Rank 0 writes and syncs large checkpoints; the others wait in a barrier.
import os
import time

import torch
import torch.distributed as dist


def save(state, path):
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.remove(path)


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    dist.all_reduce(torch.ones(1000))
    time.sleep(0.05)
    if step % 15 == 14:
        if rank == 0:
            until = time.time() + 4
            while time.time() < until:
                save({"weights": torch.ones(25_000_000)}, f"step{step}.pt")
        dist.barrier()
dist.destroy_process_group()
