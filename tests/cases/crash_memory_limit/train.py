# One rank keeps every batch and runs against its memory limit.
import resource
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
batches = []
if rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
for step in range(12):
    if rank == 1:
        batches.append(torch.ones(1 << 28))  # keeps every batch, a gigabyte each
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
