# A library of one rank calls abort().
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    if rank == 0 and step == 9:
        os.abort()
    print(f"rank {rank} step {step}", flush=True)
dist.barrier()
dist.destroy_process_group()
