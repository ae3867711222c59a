# Each rank picks whom to take the weights from, and one picks another.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
best = torch.zeros(8)
for step in range(30):
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    source = 2 if rank == 2 and step == 9 else 0  # by its own losses
    dist.broadcast(best, src=source)
    time.sleep(0.05)
dist.destroy_process_group()
