# A schedule ends on all ranks alike.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(12):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    assert step < 6, "schedule has 6 phases"
dist.destroy_process_group()
