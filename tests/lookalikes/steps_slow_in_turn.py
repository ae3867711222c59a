# In every step another rank has the long sample.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(30):
    long = step % 5 == 4 and step // 5 % world == rank
    until = time.time() + (1.8 if long else 0.04)
    while time.time() < until:
        torch.randn(32, 32).inverse()
    dist.all_reduce(torch.ones(64))
dist.destroy_process_group()
