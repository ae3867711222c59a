# Rank 0 saves and waits for an upload; the others wait for it.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.zeros(1000)
for step in range(20):
    g = torch.ones(1000)
    dist.all_reduce(g)
    w -= g
    time.sleep(0.05)
    if step == 11:
        if rank == 0:
            torch.save(w, "ck.pt")
            time.sleep(9)  # uploads it
        dist.barrier()
dist.destroy_process_group()
