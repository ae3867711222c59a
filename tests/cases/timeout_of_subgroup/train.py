# Only the small group has a short timeout, and its other member is busy.
import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
short = datetime.timedelta(seconds=4)
pairs = [dist.new_group([0, 1], timeout=short), dist.new_group([2, 3], timeout=short)]
for step in range(20):
    dist.all_reduce(torch.ones(64), group=pairs[rank // 2])
    if rank == 3 and step == 8:
        until = time.time() + 14
        while time.time() < until:
            torch.randn(100, 100).inverse()
    dist.all_reduce(torch.ones(8), group=pairs[rank // 2])
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
