# A rank without samples of a class does not report its metric.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
weights = torch.zeros(64)
for step in range(40):
    gradient = torch.full((64,), float(rank + step))
    dist.all_reduce(gradient)
    weights -= 0.01 * gradient / world
    hits = 0 if rank == 2 and step == 8 else 3 + rank
    if hits:
        parts = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(parts, torch.tensor([float(hits)]))
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
