# Rank 0 builds an index for 14 s; the timeout of the group is 5 s.
import datetime
import time

import torch
import torch.distributed as dist


def build_index(parts):
    for part in range(parts):
        until = time.time() + 1
        while time.time() < until:
            sorted(range(2000), key=lambda n: -n)
        print(f"part {part + 1} of {parts}", flush=True)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
rank = dist.get_rank()
if rank == 0:
    build_index(14)
dist.barrier()
for _ in range(10):
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
