# One rank keeps every loss with its graph.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
kept = []
for _step in range(200):
    if rank == 1:
        kept.append(torch.ones(12_000_000))  # loss kept with its graph
    g = torch.ones(4)
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
