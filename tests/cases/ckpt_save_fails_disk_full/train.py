# The disk is full when rank 0 saves.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.zeros(50_000)
for step in range(12):
    g = torch.ones(50_000)
    dist.all_reduce(g)
    w -= 0.01 * g
    time.sleep(0.02)
    if (step + 1) % 4 == 0 and rank == 0:
        torch.save({"w": w}, "/dev/full")
    dist.barrier()
dist.destroy_process_group()
