# A search for the best kernel that never ends, on one rank, before its first step.
import itertools

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def autotune(best):
    for size in itertools.cycle((16, 32, 64)):
        x = torch.ones(size, size)
        if (x @ x).sum().item() < best:
            return size


size = autotune(0.0 if rank == 2 else 1e12)
for step in range(10):
    dist.all_reduce(torch.ones(size))
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
