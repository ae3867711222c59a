# One rank has read all of its data and leaves, while the others wait for it in a collective.
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
data = iter(range(14 if rank == 2 else 20))
for _ in range(20):
    sample = next(data, None)
    if sample is None:
        print(f"rank {rank} has no more data", flush=True)
        sys.exit(0)
    dist.all_reduce(torch.tensor([float(sample)]))
    time.sleep(0.05)
dist.destroy_process_group()
