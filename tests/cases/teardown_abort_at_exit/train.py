# An exit handler of one rank aborts after the last line.
import atexit
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
atexit.register(lambda: os.abort() if rank == 1 else None)
for _step in range(10):
    g = torch.ones(4)
    dist.all_reduce(g)
    time.sleep(0.05)
print(f"rank {rank} done", flush=True)
dist.destroy_process_group()
