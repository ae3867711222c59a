# One rank says why and leaves with exit code 3.
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    if rank == 1 and step == 5:
        print("license lost", file=sys.stderr)
        sys.exit(3)
dist.destroy_process_group()
