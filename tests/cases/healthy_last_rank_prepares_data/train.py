# Rank 0 prepares the data while the others wait in a barrier.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    time.sleep(12)  # tokenizes
    torch.save(torch.ones(10), "data.pt")
dist.barrier()
data = torch.load("data.pt")
for _step in range(10):
    g = data.clone()
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
