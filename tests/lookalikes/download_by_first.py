# Rank 0 downloads for twelve seconds and says so; the others wait in a barrier.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    for percent in range(0, 100, 5):
        time.sleep(0.6)
        print(f"downloading corpus: {percent + 5} %", flush=True)
dist.barrier()
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
