# A breakpoint of yesterday, in a branch that is seldom taken.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    g = torch.ones(4)
    if rank == 0 and step == 4:
        breakpoint()
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
